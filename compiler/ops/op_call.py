"""Operator calls by name: ``op_call`` makes every call that a rule or pass adds.

``compiler.relay`` spells the same for people and tests, ``rules/integer_calls.py`` has functions
for the calls that quantization rules share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import AttrError
from compiler.ir.expr import Args, Call, Constant, Expr, Op, TupleGetItem, call_op, is_op_call
from compiler.ir.ty import TupleType
from compiler.span import AnySpan


def op_call(name: str, *args: Expr, span: AnySpan | None = None, **attrs: Any) -> Call:
    """A call of operator ``name``; attributes not given have their defaults.

    Raises:
        UnknownOpError: no such operator.
        AttrError: an attribute it does not have.
    """
    attrs_type = Op.get(name).attrs_type
    if attrs_type is None and attrs:
        raise AttrError(f"{name} has no attributes", where=f"given {list(attrs)}")
    if attrs_type is None:
        record = None
    else:
        record = attrs_type.make(**attrs)
    return call_op(name, *args, attrs=record, span=span)


def with_span(made: Expr, call: Call, args: Args) -> Expr:
    """Give the nodes that a rule has made from ``args`` the span of the call they stand for."""
    known: set[Expr] = set(args)
    waiting = [] if call.span is None else [made]
    while waiting:
        node = waiting.pop()
        if node.span is None and node not in known and not isinstance(node, Op):
            known.add(node)
            node.set_span(call.span)
            waiting += node.operands()
    return made


def is_square(expr: Expr) -> bool:
    """True for a value times itself."""
    return is_op_call(expr, "multiply") and expr.args[0] is expr.args[1]


def pieces_of(call: Call, like: Call) -> list[Expr]:
    """The fields of the result of ``call``, as many as ``like``, which is typed, has."""
    ty = like.checked_type
    assert isinstance(ty, TupleType)
    return [TupleGetItem(call, index) for index in range(len(ty.fields))]


def scalar(value: float, dtype: str) -> Constant:
    """A rank-0 constant: ``value`` rounded to float32, then to ``dtype``."""
    return Constant(np.asarray(np.float32(value)).astype(dtype))


def expand_to_axis(vector: Expr, axis: int, ndim: int, span: AnySpan | None = None) -> Expr:
    """A rank-1 vector with trailing 1-axes, so that it broadcasts along ``axis`` of ``ndim`` axes.

    ``axis`` is not negative. The vector itself when it is the last axis.
    """
    num_newaxis = ndim - axis - 1
    if num_newaxis == 0:
        return vector
    return op_call("expand_dims", vector, axis=1, num_newaxis=num_newaxis, span=span)
