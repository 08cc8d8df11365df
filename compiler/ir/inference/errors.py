"""Errors of InferType about calls that do not fit: operator, argument types, printed call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compiler.errors import TypeInferenceError
from compiler.ir.adt import REF_WORD_OF, Match
from compiler.ir.attrs import value_text
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    describe,
)
from compiler.ir.text.literals import scalar_literal
from compiler.ir.ty import Type

MAX_REPORTED = 10
MAX_CALL_TEXT = 200


class TypeMistake(NamedTuple):
    """One error of a function: the node, the message and what the arguments were."""

    node: Expr
    what: str
    where: str
    fix: str | None


def call_text(expr: Expr) -> str:
    """``expr`` on one line, operands one level deep, at most MAX_CALL_TEXT characters."""
    text = _text(expr, 2)
    if len(text) <= MAX_CALL_TEXT:
        return text
    return text[: MAX_CALL_TEXT - 1] + "…"


def _text(expr: Expr, depth: int) -> str:
    if isinstance(expr, Constant):
        literal = scalar_literal(expr.data) if expr.is_scalar else None
        return literal or describe(expr)
    if isinstance(expr, Function):
        return "fn (…) {…}"
    if isinstance(expr, If):
        return f"if ({_text(expr.cond, 1)}) {{…}} else {{…}}"
    if isinstance(expr, Match):
        return f"match{'' if expr.complete else '?'} ({_text(expr.data, 1)}) {{…}}"
    if isinstance(expr, Let):
        return f"let {_text(expr.var, 1)} = {_text(expr.value, 1)}"
    if type(expr) in REF_WORD_OF:
        return f"{REF_WORD_OF[type(expr)]}({_list(expr.operands(), depth)})"
    if isinstance(expr, TupleGetItem):
        if depth:
            return f"{_text(expr.tuple, depth - 1)}.{expr.index}"
        return "…"
    if isinstance(expr, Tuple):
        return f"({_list(expr.fields, depth)})"
    if isinstance(expr, Call):
        if expr.attrs is None:
            attrs = []
        else:
            attrs = list(expr.attrs.non_default_items())
        parts = [_list(expr.args, depth), *(f"{k}={value_text(v)}" for k, v in attrs)]
        return f"{_text(expr.op, 1)}({', '.join(p for p in parts if p)})"
    return describe(expr)


def _list(args: Sequence[Expr], depth: int) -> str:
    if depth:
        return ", ".join(_text(a, depth - 1) for a in args)
    return "…"


def argument_types(call: Call, types: Sequence[Type]) -> str:
    """``argument 0 (data): Tensor[...]; …`` for the arguments of a call."""
    names = call.op.arg_names if isinstance(call.op, Op) else ()
    parts = []
    for index, ty in enumerate(types):
        name = f" ({names[index]})" if index < len(names) else ""
        parts.append(f"argument {index}{name}: {ty}")
    return "; ".join(parts)


def call_mistake(call: Call, types: Sequence[Type], error: TypeInferenceError) -> TypeMistake:
    """The mistake a relation or unification reported about ``call``."""
    if isinstance(call.op, Op):
        name = call.op.name
    else:
        name = describe(call)
    if name in error.what:
        what = error.what
    else:
        what = f"{name}: {error.what}"
    place = [f"in {call_text(call)}", argument_types(call, types)]
    if error.where and error.where not in what:
        place.insert(0, error.where)
    return TypeMistake(call, what, "; ".join(p for p in place if p), error.fix)


def combined_error(mistakes: Sequence[TypeMistake], function_name: str) -> TypeInferenceError:
    """One exception for every independent mistake of a function, the first ten in full."""
    first = mistakes[0]
    if len(mistakes) == 1:
        return TypeInferenceError(
            first.what, where=first.where, fix=first.fix, span=first.node.span
        )
    lines = [f"{len(mistakes)} type errors in {function_name}"]
    for number, mistake in enumerate(mistakes[:MAX_REPORTED], 1):
        if mistake.node.span is not None:
            span = f" ({mistake.node.span})"
        else:
            span = ""
        lines.append(f"  {number}. {mistake.what}{span}")
        lines.append(f"     where: {mistake.where}")
        if mistake.fix:
            lines.append(f"     fix: {mistake.fix}")
    if len(mistakes) > MAX_REPORTED:
        lines.append(f"  … and {len(mistakes) - MAX_REPORTED} more")
    return TypeInferenceError("\n".join(lines), span=first.node.span)
