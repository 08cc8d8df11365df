"""OutlineFormulas: arithmetic on one value, element by element, becomes one unary_formula.

    before (GELU)                         after
    %1 = multiply(%x, 0.70710677f);       unary_formula(%x, formula="x x 0.70710677 multiply erf
    %2 = erf(%1);                                                    1.0 add multiply 0.5 multiply")
    %3 = add(%2, 1f);
    %4 = multiply(%x, %3);
    multiply(%4, 0.5f)

Fires on the largest such graphs whose source is one float32 tensor, with scalar constants, when
they hold a function that integers have no operator for, use the source twice, or are a hard
sigmoid. What is read from outside is outlined by itself as well. The root of a sum, and squares
that are its terms, have integers of their own.
A truth value of such a function is a table of 0 and 1 that is compared with a half.
Not handled: constants per channel; a formula of more than 96 words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TensorType
from compiler.ir.walk import nodes_of
from compiler.ops.nn.relu import LeakyReluAttrs
from compiler.ops.op_call import is_square, op_call
from compiler.ops.tensor.clip import ClipAttrs
from compiler.ops.tensor.formula import COMPARISONS, MAX_WORDS, OPERATORS
from compiler.ops.tensor.logical import MIRRORED
from compiler.passes.recovered_calls import retyped
from compiler.span import AnySpan, join_spans

Words = tuple[str, ...]

_BESIDE_CONSTANTS: Final = ("add", "maximum", "clip")
_TERMS: Final = 64
"""Operators between a root and its sum that are looked through, and terms of the sum."""
_COMPARED: Final = frozenset((*COMPARISONS, "where", "add", "subtract", "multiply", "divide"))
_PLAIN = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "negative"})


@register_pass("OutlineFormulas", opt_level=0, required=("InferType",))
class OutlineFormulas(FunctionPass):
    """Make one call of every function of one variable."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The outlined function, itself when there is nothing to outline."""
        finder = _Finder()
        for node in nodes_of(fn):
            if isinstance(node, Call):
                finder.visit(node)
        outlined = finder.outlined(fn)
        if not outlined:
            return fn

        def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            if node not in outlined:
                return None
            found = finder.found[node]
            span = _span_of(node, found.source)
            if node.tensor_type.dtype == "bool":
                return _truth(new[found.source], found.words, span)
            formula = " ".join(found.words)
            return op_call("unary_formula", new[found.source], formula=formula, span=span)

        return retyped(fn, mod, made)


def _truth(source: Expr, words: Words, span: AnySpan | None) -> Expr:
    """Return a truth value of a source: a table of 0 and 1 above a half; |x| < t is x < t and
    x > -t, which integers of any bits compare."""
    match words:
        case ("x", "abs", number, ("less" | "less_equal" | "greater" | "greater_equal") as name):
            limit = np.asarray(float(number), np.float32)
            above = op_call(name, source, Constant(limit), span=span)
            below = op_call(MIRRORED[name], source, Constant(-limit), span=span)
            joined = "logical_and" if name.startswith("less") else "logical_or"
            return op_call(joined, above, below, span=span)
    formula = " ".join((*words, "1.0", "0.0", "where"))
    value = op_call("unary_formula", source, formula=formula, span=span)
    return op_call("greater", value, Constant(np.asarray(0.5, np.float32)), span=span)


def _span_of(node: Expr, source: Expr) -> AnySpan | None:
    """Return the span that joins the spans between the source and the node."""
    spans: list[AnySpan | None] = []
    seen: set[Expr] = {source}
    stack = [node]
    while stack:
        expr = stack.pop()
        if expr in seen or not isinstance(expr, Call):
            continue
        seen.add(expr)
        spans.append(expr.span)
        stack.extend(expr.args)
    return join_spans(reversed(spans))


@dataclass(frozen=True, slots=True, eq=False)
class _Formula:
    source: Expr
    words: Words


class _Finder:
    """The formula of every call that has one."""

    def __init__(self) -> None:
        self.found: dict[Expr, _Formula] = {}
        self.squares: set[Expr] = set()

    def visit(self, call: Call) -> None:
        """Classify a call whose operands have been visited."""
        make = _words_of(call)
        ty = call.checked_type
        if make is None or not isinstance(ty, TensorType):
            return
        if (total := _rooted(call)) is not None:
            self.squares |= _squares(total)
            return
        if ty.dtype not in ("float32", "bool"):
            return
        variables = [arg for arg in call.args if _number(arg, ty) is None]
        for source in self._sources(variables):
            if source.tensor_type.shape != ty.shape or source.tensor_type.dtype != "float32":
                continue
            parts = [self._as_words(arg, source, ty) for arg in call.args]
            made = make(parts)
            if len(made) <= MAX_WORDS:
                self.found[call] = _Formula(source, made)
                return

    def _sources(self, variables: list[Expr]) -> list[Expr]:
        """Values that all operands are functions of, the farthest first."""
        common: list[Expr] | None = None
        for variable in variables:
            known = self.found.get(variable)
            mine = [variable] if known is None else [known.source, variable]
            if common is None:
                common = mine
            else:
                common = [s for s in common if s in mine]
        return [s for s in common or [] if isinstance(s.checked_type, TensorType)]

    def _as_words(self, arg: Expr, source: Expr, ty: TensorType) -> Words:
        if arg is source:
            return ("x",)
        number = _number(arg, ty)
        if number is None:
            return self.found[arg].words
        return (_text(number),)

    def outlined(self, fn: Function) -> set[Expr]:
        """Calls to replace: the result, and calls with a reader that continues no such formula."""
        worth = {
            node: formula
            for node, formula in self.found.items()
            if _is_worth(formula.words, node.tensor_type.dtype == "bool")
            and node not in self.squares
        }
        if not worth:
            return set()
        chosen: set[Expr] = set(worth) & {fn.body}
        inside: set[Expr] = set()
        for node in nodes_of(fn):
            for operand in node.operands():  # a tuple reads too: concatenate, several outputs
                formula = worth.get(operand)
                if formula is None:
                    continue
                inside.add(operand)
                if not self._continues(operand, formula, node):
                    chosen.add(operand)
        return chosen | (worth.keys() - inside)

    def _continues(self, node: Expr, formula: _Formula, reader: Expr) -> bool:
        further = self.found.get(reader)
        return (
            further is not None and further.source is formula.source and further.source is not node
        )


def _rooted(call: Call) -> Expr | None:
    """The sum of computed values that this is the root of, beside constants; None of others."""
    if not is_op_call(call, "sqrt"):
        return None
    (value,) = call.args
    for _ in range(_TERMS):
        if not is_op_call(value, "sqrt", *_BESIDE_CONSTANTS):
            break
        computed = [arg for arg in value.args if not isinstance(arg, Constant)]
        if len(computed) != 1:
            break
        (value,) = computed
    if is_op_call(value, "add", "sum"):
        return value
    return None


def _squares(total: Expr) -> set[Expr]:
    """The terms of a sum that are squares, of its first ones."""
    found: set[Expr] = set()
    waiting = [total]
    for _ in range(_TERMS):
        if not waiting:
            break
        term = waiting.pop()
        if is_op_call(term, "add", "sum"):
            waiting += term.args
        elif is_square(term):
            found.add(term)
    return found


def _text(number: float) -> str:
    """The shortest text that reads as the same float32."""
    return repr(float(str(np.float32(number))))


def _is_worth(words: Words, truth: bool) -> bool:
    operators = [w for w in words if w in OPERATORS]
    if truth:  # integers compare without a table
        return not _COMPARED.issuperset(operators)
    hard = "maximum" in operators and "minimum" in operators
    return (
        any(w not in _PLAIN for w in operators)
        or words.count("x") > 1
        or (hard and "add" in operators and ("multiply" in operators or "divide" in operators))
    )


def _number(expr: Expr, result: TensorType) -> float | None:
    """The value of a float constant of one element, or as large as the result and alike."""
    if not isinstance(expr, Constant) or expr.data.dtype.kind != "f" or not expr.data.size:
        return None
    value = float(expr.data.flat[0])
    filled = expr.data.shape == result.shape and bool((expr.data == value).all())
    if value == value and (filled or expr.data.size == 1):
        return value
    return None


def _words_of(call: Call) -> Callable[[list[Words]], Words] | None:
    """Makes the formula of a call from its arguments' formulas; None for other operators."""
    name = call.op.name if isinstance(call.op, Op) else ""
    attrs = call.attrs
    if name in OPERATORS:
        return lambda parts: (*(word for part in parts for word in part), name)
    if name == "logical_not":
        return lambda parts: (*parts[0], "0.0", "1.0", "where", "0.5", "greater")
    if name == "cast" and call.args[0].tensor_type.dtype == "bool":
        return lambda parts: (*parts[0], "1.0", "0.0", "where")
    if name == "nn.relu":
        return lambda parts: (*parts[0], "0.0", "maximum")
    if isinstance(attrs, ClipAttrs):
        low, high = _text(attrs.a_min), _text(attrs.a_max)
        return lambda parts: (*parts[0], high, "minimum", low, "maximum")
    if isinstance(attrs, LeakyReluAttrs):
        alpha = _text(attrs.alpha)
        below = ("0.0", "minimum", alpha, "multiply")
        return lambda parts: (*parts[0], "0.0", "maximum", *parts[0], *below, "add")
    return None
