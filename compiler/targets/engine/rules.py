"""Rules of elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.ty import bits, integer_range
from compiler.ops.tensor.clip import integer_bound
from compiler.targets.engine.general import spread
from compiler.targets.engine.packing import POWER_OF_TWO
from compiler.targets.engine.planner import RAW_DTYPES, Planner, rule
from compiler.targets.engine.rounding import rounded_product
from compiler.targets.engine.values import INT32, Item, constant, is_integer

Array = NDArray[Any]

_BINARY = {
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
}
_LARGEST_QUANTIZED = 1 << 23
_RESHAPES = ("reshape", "expand_dims", "squeeze", "nn.batch_flatten")


@rule(*_BINARY)
def binary(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Two operands, broadcast."""
    return planner.elementwise(step, _BINARY[step.name], args)


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


@rule("isqrt")
def root(planner: Planner, step: Step, args: list[Item]) -> bool:
    """In integers of 64 bits."""
    return planner.elementwise(step, "ROOT", args)


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


@rule("fixed_point_multiply")
def fixed_point(planner: Planner, step: Step, args: list[Item]) -> bool:
    """One factor."""
    multiplier = np.array([step.attrs.multiplier], np.int64)
    shift = np.array([step.attrs.shift], np.int64)
    return _rescale(planner, step, args[0], multiplier, shift, None)


@rule("fixed_point_multiply_per_axis")
def fixed_point_per_axis(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A factor per index of an axis."""
    data, multiplier, shift = args
    if multiplier.data is None or shift.data is None:
        return False
    factors = [a.data.astype(np.int64) for a in (multiplier, shift) if a.data is not None]
    axis: int | None = step.attrs.axis % len(data.shape)
    if all((f == f[0]).all() for f in factors if f.size):
        factors, axis = [f[:1] for f in factors], None
    return _rescale(planner, step, data, factors[0], factors[1], axis)


def _rescale(
    planner: Planner, step: Step, data: Item, multiplier: Array, shift: Array, axis: int | None
) -> bool:
    dtype = step.args[0].type.dtype
    if not multiplier.size or shift.max() > 30 or shift.min() < -64:
        return False
    # Powers of two add their half in the dtype of the data; of a shift by all its bits 0 is left.
    multiplier = np.where((multiplier == POWER_OF_TWO) & (1 - shift >= bits(dtype)), 0, multiplier)
    right = 1 - int(shift[multiplier == POWER_OF_TWO].min(initial=1))
    most = max(abs(data.low), abs(data.high))
    if right > 0 and data.high + (1 << (right - 1)) > integer_range(dtype)[1]:
        return False
    if most >= 1 << 32:
        return False
    left = int(max(shift.max(), 0))
    if most * int(np.abs(multiplier).max()) << left >= 1 << 62:
        return False
    found = planner.compose("RESCALE", (data,), multiplier, shift, axis)
    powers = multiplier == POWER_OF_TWO
    if not found.fits_int32 and bits(dtype) == 64 and powers.any():
        # Results have 32 bits, but those of powers of two as many as the data.
        return bool(powers.all()) and planner.settle(step, found)
    if not found.fits_int32:
        found = planner.compose("WRAP", (found,), "int32")
    return planner.settle(step, found)


@rule("right_shift")
def right_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """By constant numbers of bits; the end of a rounded product."""
    data, count = args[0], args[1].as_scalar()
    if data.shape != step.results[0].type.concrete_shape:
        return planner.elementwise(step, "RIGHT", (data, count))
    found = rounded_product(planner, data, count)
    if found is not None:
        return planner.settle(step, found)
    one = count.data is not None and count.data.size == 1 and 0 <= count.low <= 31
    if one and data.fits_int32:
        return planner.elementwise(step, "SHIFT", (data,), count.low)
    return planner.elementwise(step, "RIGHT", (data, count))


@rule("cast")
def cast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another name where no value changes; a wrap; the end of ``quantize_inputs``; else numpy."""
    (data,) = args
    dtype = step.results[0].type.dtype
    if not is_integer(step.args[0].type.dtype):
        return _quantize(planner, step)
    if dtype == "bool":
        zero = planner.compose("EQUAL", (data, constant(0)))
        return planner.settle(step, planner.compose("SUB", (constant(1), zero)))
    low, high = integer_range(dtype)
    if data.data is not None or data.low < low or data.high > high:
        return planner.settle(step, data)
    if data.host is not None:
        planner.materialise(data)
    return planner.alias(step, data)


def _quantize(planner: Planner, step: Step) -> bool:
    """``cast(clip(round(x * scale)))`` of an input of the function."""
    dtype = step.results[0].type.dtype
    clipped = _made_by(planner, step.args[0], "clip")
    rounded = _made_by(planner, clipped.args[0], "round") if clipped else None
    times = _made_by(planner, rounded.args[0], "multiply") if rounded else None
    if clipped is None or times is None or dtype not in RAW_DTYPES:
        return False
    source, scale = (planner.root(a) for a in times.args)
    if source.data is not None:
        source, scale = scale, source
    factor = scale.data
    shape = source.type.concrete_shape
    while source.producer is not None and source.producer.name in _RESHAPES:
        source = planner.root(source.producer.args[0])
    inputs = [planner.root(v) for v in planner.flow.inputs]
    if source not in inputs or source.type.dtype != "float32" or factor is None:
        return False
    if factor.size > 1 and (len(shape) < 2 or factor.shape not in _per_channel(shape)):
        return False
    bounds = float(clipped.attrs.a_min), float(clipped.attrs.a_max)
    if not all(abs(b) < _LARGEST_QUANTIZED and b == int(b) for b in bounds):
        return False
    low, high = int(bounds[0]), int(bounds[1])
    info = integer_range(dtype)
    # The kernel gives 0 for NaN, and so does the cast as long as 0 is within the bounds.
    if not info[0] <= low <= 0 <= high <= info[1] or not all(shape):
        return False
    item = Item(step.results[0].type.concrete_shape, low, high)
    planner.define(step, item)
    view = planner.emitter.quantize(inputs.index(source), item, factor.reshape(-1), (low, high))
    item.view = view
    return view is not None


def _per_channel(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes of a factor along axis 1."""
    tail = (shape[1], *(1,) * (len(shape) - 2))
    return tail, (1, *tail)


def _made_by(planner: Planner, value: FlowValue, name: str) -> Step | None:
    step = planner.root(value).producer
    return step if step is not None and step.name == name else None
