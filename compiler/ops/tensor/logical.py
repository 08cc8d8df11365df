"""Operators of bits and truth values, of which ``where`` chooses; broadcast.

right_shift, left_shift, bitwise_and, bitwise_or, bitwise_xor, bitwise_not on integers.
right_shift of a signed integer is arithmetic (floor division by 2^n); left_shift wraps.
logical_and, logical_or, logical_xor, logical_not on bool; isnan, isinf, isfinite on floats.
where(condition, x, y): x where the condition holds, else y.

equal, not_equal, less, less_equal, greater, greater_equal give bools. Bools are equal or not; they
have no order, as in ONNX. Quantized: accumulators are compared as wide as they are, with each other
at one scale, or with the integer that a constant lies at or next to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.errors import EvaluationError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, bits, holds_float
from compiler.lir.scalars import Bin, BoolImm, Scalar, Select, Un
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.annotation.minus_infinity import mask_point
from compiler.ops.arg_types import Types, integer_tensor, same_dtype, tensor
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.lower import FLower, LowerRule, elementwise, like_first
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import partition_inside
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    both_realized,
    integer_limits,
    integers,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.broadcast import binary_op, broadcast_shape, check_numbers
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind


def checked_shift(amount: NDArray[Any]) -> NDArray[Any]:
    """The shift amounts themselves.

    Raises:
        EvaluationError: one is outside [0, bits of the dtype).
    """
    width = amount.dtype.itemsize * 8
    if amount.size and (int(amount.min()) < 0 or int(amount.max()) >= width):
        raise EvaluationError(
            f"{amount.dtype} shifted by {int(amount.min())} to {int(amount.max())} bits",
            fix=f"keep them in [0, {width})",
        )
    return amount


for _name, _function, _symbol in (
    ("right_shift", lambda lhs, rhs: np.right_shift(lhs, checked_shift(rhs)), ">>"),
    ("left_shift", lambda lhs, rhs: np.left_shift(lhs, checked_shift(rhs)), "<<"),
    ("bitwise_and", np.bitwise_and, "&"),
    ("bitwise_or", np.bitwise_or, "|"),
    ("bitwise_xor", np.bitwise_xor, "^"),
):
    binary_op(_name, _function, _symbol, numbers="integer")


@define_op("bitwise_not", pattern=OpPattern.ELEMWISE)
def bitwise_not(types: Types, attrs: Any) -> Type:
    """Type of data, which holds integers."""
    return integer_tensor("bitwise_not", types, 0, "data")


FNumpyCompute.register(bitwise_not)(of_arrays(np.bitwise_not))
FLower.register(bitwise_not)(elementwise(lambda attrs, x: Un("not", x)))


@FBody.register("left_shift")
def left_shift_body(step: Step, words: Words) -> Value | None:
    """The product with a power of two, where the dtype holds one that is known; else a word."""
    data, amount = step.args
    if amount.data is None or not amount.data.size:
        return None
    dtype = data.type.dtype
    if amount.data.min() < 0 or amount.data.max() >= bits(dtype) - (dtype[0] != "u"):
        return None
    powers = np.left_shift(np.int64(1), amount.data.astype(np.int64))
    return words.multiply(data, words.constant(powers, dtype))


@FBody.register("bitwise_xor")
def bitwise_xor_body(step: Step, words: Words) -> Value:
    """Return the bits of either operand, less the bits of both."""
    a, b = step.args
    either = words.binary("bitwise_or", a, b)
    return words.subtract(either, words.binary("bitwise_and", a, b))


@FBody.register("bitwise_not")
def bitwise_not_body(step: Step, words: Words) -> Value:
    """-1 - x, or the largest value less x."""
    return words.mirrored(step.args[0])


# ---- logical -------------------------------------------------------------------------------------


binary_op("logical_and", np.logical_and, "and", numbers="bool")
binary_op("logical_or", np.logical_or, "or", numbers="bool")
binary_op("logical_xor", np.logical_xor, "xor", numbers="bool")


def _question(name: str, function: Callable[..., Any], lower: LowerRule) -> None:
    @define_op(name, pattern=OpPattern.ELEMWISE)
    def op(types: Types, attrs: Any) -> Type:
        data = tensor(name, types, 0, "data")
        if name == "logical_not":
            check_numbers(name, data.dtype, "bool")
        return TensorType(data.shape, "bool")

    FNumpyCompute.register(op)(of_arrays(function))
    FLower.register(op)(lower)


def _is_nan(attrs: Any, x: Scalar) -> Scalar:
    if x.dtype.startswith("float"):
        return Bin("!=", x, x)
    return BoolImm(False)


def _is_infinite(attrs: Any, x: Scalar) -> Scalar:
    if not x.dtype.startswith("float"):
        return BoolImm(False)
    return Bin("==", Un("abs", x), like_first(np.inf, x))


def _is_finite(attrs: Any, x: Scalar) -> Scalar:
    if not x.dtype.startswith("float"):
        return BoolImm(True)
    return Bin("<", Un("abs", x), like_first(np.inf, x))


_question("logical_not", np.logical_not, elementwise(lambda attrs, x: Un("not", x)))
_question("isnan", np.isnan, elementwise(_is_nan, reads=2))
_question("isinf", np.isinf, elementwise(_is_infinite))
_question("isfinite", np.isfinite, elementwise(_is_finite))


@FBody.register("logical_and", "logical_or", "logical_xor", "logical_not")
def logical_body(step: Step, words: Words) -> Value:
    """A choice by the first operand."""
    a, *others = step.args
    if not others:
        return words.negation(a)
    (b,) = others
    if step.name == "logical_and":
        return words.where(a, b, words.constant(False, "bool"))
    if step.name == "logical_or":
        return words.where(a, words.constant(True, "bool"), b)
    return words.where(a, words.negation(b), b)


# ---- comparisons ---------------------------------------------------------------------------------


_OPS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

for _name, _function, _symbol, _numbers in (
    ("equal", np.equal, "==", "any"),
    ("not_equal", np.not_equal, "!=", "any"),
    ("less", np.less, "<", "number"),
    ("less_equal", np.less_equal, "<=", "number"),
    ("greater", np.greater, ">", "number"),
    ("greater_equal", np.greater_equal, ">=", "number"),
):
    binary_op(_name, _function, _symbol, dtype="bool", numbers=_numbers)


@FBody.register("not_equal", "less_equal", "greater", "greater_equal")
def comparison_body(step: Step, words: Words) -> Value:
    """Write a comparison by equal and less, of exchanged operands or negated."""
    a, b = step.args
    if step.name == "not_equal":
        return words.negation(words.equal(a, b))
    if step.name == "greater_equal":
        found = words.less(a, b)
    else:
        found = words.less(b, a)
    if step.name == "greater":
        return found
    return words.negation(found)


FQPartitionRewrite.register(*_OPS, needs_tables=True)(partition_inside)


@FQAnnotateRewrite.register(*_OPS, needs_tables=True)
def comparison_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Annotate a comparison of values that will be integers, or of one and a constant; truth values
    have no scale."""
    known = [isinstance(arg, Constant) and not np.isnan(arg.data).any() for arg in args]
    either = (one or kind_of(arg) is not None for one, arg in zip(known, args))
    if ctx.check_to_skip(ref_call) or all(known) or not all(either):
        return None
    ctx.integer_masks.add(ref_call)
    return with_args(ref_call, tuple(map(unannotated, args)))


@FQRealizeRewrite.register(*_OPS, needs_tables=True)
def comparison_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Integers with integers."""
    pair = both_realized(args)
    if pair is not None:
        (lhs, rhs), _ = unify_for_add(ref_call, pair, ctx.qconfig, reach=0.0)
        return with_args(ref_call, (lhs.data, rhs.data))
    place = int(isinstance(args[0], Constant))
    value = args[place]
    bound = args[1 - place]
    if not isinstance(value, QRealizeIntExpr) or not isinstance(bound, Constant):
        return None
    assert isinstance(ref_call.op, Op)
    name = ref_call.op.name
    if place:  # the constant is on the left: c < x is x > c
        name = MIRRORED.get(name, name)
    acc = ctx.qconfig.dtype_activation
    value = to_scalar(value, len(ref_call.args[place].tensor_type.shape), ctx.qconfig)
    steps = _in_steps(name, bound, value)
    low, high = integer_limits(acc)
    steps = np.clip(steps, max(low, value.low - 1), min(high, value.high + 1))
    sides = (value.in_dtype(acc), Constant(steps.astype(acc)))
    return with_args(ref_call, sides[::-1] if place else sides)


MIRRORED: Final = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_ROUNDING: Final[dict[str, Callable[..., Any]]] = {
    "less": np.ceil,
    "greater_equal": np.ceil,
    "greater": np.floor,
    "less_equal": np.floor,
}
"""x < 2.5 and x >= 2.5 hold for the same integers as with 3, x > 2.5 and x <= 2.5 as with 2."""


def _in_steps(name: str, bound: Constant, value: QRealizeIntExpr) -> NDArray[np.float64]:
    """Return the integers that compare with the data as the bound does with the real values; a
    bound between two integers equals none of the data."""
    scale = np.float32(value.dom_scale.data)
    steps = bound.data.astype(np.float64) / np.float64(scale)
    near = np.rint(steps)
    between: Any = value.high + 1.0
    if name in _ROUNDING:
        between = _ROUNDING[name](steps)
    return np.where(near.astype(np.float32) * scale == bound.data, near, between)


# ---- choice --------------------------------------------------------------------------------------


@define_op("where", arg_names=("condition", "x", "y"), pattern=OpPattern.BROADCAST)
def where(types: Types, attrs: Any) -> Type:
    """Broadcast shape of the three, dtype of x and y; any dtype may be the condition (not zero)."""
    condition = tensor("where", types, 0, "condition")
    x = tensor("where", types, 1, "x")
    y = tensor("where", types, 2, "y")
    dtype = same_dtype("where", x, y)
    branches = broadcast_shape("where", x.shape, y.shape)
    return TensorType(broadcast_shape("where", condition.shape, branches), dtype)


FNumpyCompute.register(where)(of_arrays(np.where))


@FQAnnotateRewrite.register(where, needs_tables=True)
def where_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Chooses between two values at one scale; a constant one is quantized as a weight.

    A condition that stays float leaves the choice there as well.
    """
    condition, x, y = args
    if not _is_whole(ref_call.args[0], ctx) or ctx.check_to_skip(ref_call):
        return None
    constant = isinstance(x, Constant) and isinstance(y, Constant)
    if kind_of(x) is None and kind_of(y) is None and not constant:
        return None
    masks = ref_call in ctx.facts.masks
    point = mask_point if masks and not constant else as_input
    sides = [point(side, ctx) if kind_of(side) is None else unannotated(side) for side in (x, y)]
    if kind_of(x) == kind_of(y) == QAnnotateKind.ACTIVATION and not masks:
        sides[1] = as_input(y, ctx)
    return annotated(ref_call, (condition, *sides))


def _is_whole(condition: Expr, ctx: QuantizeContext) -> bool:
    """True for what is computed from truth values and what is or will be integers."""
    seen: set[Expr] = set()
    stack = [condition]
    while stack:
        node = stack.pop()
        if node in seen or node in ctx.integer_masks or isinstance(node, Op):
            continue
        seen.add(node)
        if holds_float(node.checked_type):
            return False
        stack.extend(node.operands())
    return True


@FQRealizeRewrite.register(where, needs_tables=True)
def where_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both branches at the smaller of their scales."""
    condition, *sides = args
    pair = both_realized((sides[0], sides[1]))
    if pair is None:
        return None
    branches = with_args(ref_call, ref_call.args[1:])
    branches.set_checked_type(ref_call.checked_type)
    (lhs, rhs), scale = unify_for_add(branches, pair, ctx.qconfig, ctx.reach_of(ref_call))
    call = with_args(ref_call, (condition, lhs.data, rhs.data))
    return integers(call, scale, ctx.qconfig.dtype_activation, ctx.bounds_of)


@FLower.register(where)
@elementwise
def where_lower(attrs: Any, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Any number but zero holds."""
    if condition.dtype != "bool":
        condition = Bin("!=", condition, like_first(0, condition))
    return Select(condition, x, y)


@FBody.register("where")
def where_body(step: Step, words: Words) -> Value | None:
    """A number is a condition where it is not 0."""
    condition, a, b = step.args
    if condition.type.dtype == "bool":
        return None
    return words.where(words.cast(condition, "bool"), a, b)


FQZeroPoint.register(*_OPS)(centred)
