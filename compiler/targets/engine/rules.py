"""Rules of elementwise operators."""

from __future__ import annotations

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.qnn.requantize import TFLM, bias_dtype, factors_of, held_limits
from compiler.ops.tensor.clip import integer_bound
from compiler.ops.tensor.fixed_point_multiply import PRODUCTS, multiplied_by
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.rounding import rescale
from compiler.targets.engine.values import INT32, Item, constant, constants, spread

_ELEMENTWISE = {
    "add": "ADD",
    "subtract": "SUB",
    "multiply": "MUL",
    "maximum": "MAX",
    "minimum": "MIN",
    "bitwise_and": "AND",
    "bitwise_or": "OR",
    "floor_divide": "FLOORED",
    "left_shift": "LEFT",
    "less": "LESS",
    "equal": "EQUAL",
    "isqrt": "ROOT",
}


@rule(*_ELEMENTWISE)
def elementwise(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Operands, broadcast."""
    return planner.elementwise(step, _ELEMENTWISE[step.name], args)


@rule("where")
def where(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A choice by a condition, which is no 0."""
    condition, x, y = args
    if (condition.low, condition.high) != (0, 1):
        x, y = y, x
        condition = planner.compose("EQUAL", (condition, constant(0)))
    chain = condition.chain
    if chain is not None and chain.op == "SUB" and chain.args[0].low == chain.args[0].high == 1:
        condition, x, y = chain.args[1], y, x
    if condition.data is not None and condition.low == condition.high:
        return planner.settle(
            step, spread(x if condition.low else y, step.results[0].type.concrete_shape)
        )
    return planner.elementwise(step, "SELECT", (condition, x, y))


@rule("nn.relu")
def relu(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A clip with one bound."""
    return planner.elementwise(step, "CLIP", args, 0, max(args[0].high, INT32[1]))


@rule("clip")
def clip(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Bounds as the operator's integers take them."""
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(v, dtype) for v in (step.attrs.a_min, step.attrs.a_max))
    return planner.elementwise(step, "CLIP", args, low, high)


@rule("qnn.requantize")
def requantize(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A bias, a relu, a product, a clip and a zero point, in the dtypes of the body."""
    attrs, x = step.attrs, args[0]
    vectors = [arg.data for arg in args[1:] if arg.data is not None]
    if len(vectors) + 1 < len(args) or attrs.rounding in TFLM:
        return False
    dtype, shape = attrs.compute_dtype, x.shape
    multiplier, shift, bias = factors_of(attrs, vectors, len(shape))
    if bias.any():
        x = planner.compose("ADD", (x, constants(bias)))
        x = planner.wrapped(x, bias_dtype(step.args[0].type.dtype), shape)
    if attrs.relu:
        x = planner.compose("CLIP", (x,), 0, max(x.high, INT32[1]))
    x = planner.wrapped(x, dtype, shape)
    axis = attrs.axis % max(len(shape), 1)
    made = rescale(planner, x, (multiplier, shift), axis, attrs.rounding, dtype)
    if made is None:
        return False
    limits = held_limits(attrs)
    if limits is not None:
        made = planner.compose("CLIP", (planner.wrapped(made, dtype, shape),), *limits)
    if attrs.zero_point:
        made = planner.compose("ADD", (made, constant(attrs.zero_point)))
    return planner.settle(step, planner.wrapped(made, dtype, shape))


@rule(*PRODUCTS)
def fixed_point(planner: Planner, step: Step, args: list[Item]) -> bool:
    """One factor, or one per index of an axis."""
    known, (data, *vectors) = multiplied_by(step), args
    if known is None:
        return False
    axis = step.attrs.axis % len(data.shape) if vectors else 0
    made = rescale(planner, data, known, axis, "up", step.args[0].type.dtype)
    return made is not None and planner.settle(step, made)


@rule("right_shift")
def right_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Shift by constant numbers of bits."""
    data, count = args[0], args[1].as_scalar()
    if data.shape != step.results[0].type.concrete_shape:
        return planner.elementwise(step, "RIGHT", (data, count))
    one = count.data is not None and count.data.size == 1 and 0 <= count.low <= 31
    if one and data.fits_int32:
        return planner.elementwise(step, "SHIFT", (data,), count.low)
    return planner.elementwise(step, "RIGHT", (data, count))


@rule("cast")
def cast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another name where no value changes, else a wrap."""
    (data,) = args
    dtype = step.results[0].type.dtype
    if dtype == "bool":
        zero = planner.compose("EQUAL", (data, constant(0)))
        return planner.settle(step, planner.compose("SUB", (constant(1), zero)))
    low, high = integer_range(dtype)
    if data.data is not None or data.low < low or data.high > high:
        return planner.settle(step, data)
    return planner.alias(step, data)
