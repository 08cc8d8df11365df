"""Rules of elementwise operators; requantizations as few of them: one where halves allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import bits, integer_range
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import TFLM, bias_dtype, factors_of, limits_of, shifts_only
from compiler.ops.tensor.clip import integer_bound
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO, PRODUCTS, multiplied_by
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.programs import shift_axis
from compiler.targets.engine.values import INT32, Item, constant, constants, spread

_MOST = 1 << 62
"""Beyond every product and sum that 64 bits hold for sure."""
_DOWN = 31
"""Bits by which 32 bits are shifted at most."""


def rescale(
    planner: Planner, x: Item, factors: tuple[Array, Array], axis: int, ties: str, dtype: str
) -> Item | None:
    """The values of x at another scale; None where 64 bits may not hold what they come from, and
    where halves go away from zero and a factor is below zero.

    Halves go up in RESCALE. Those that go away from zero are the same where x is not negative; all
    are the same where no product is a half. Else the results of x and -x tell where halves are.

    Args:
        factors: multipliers and shifts, shaped to broadcast against x.
        axis: along which they vary.
        ties: as ``qnn.requantize`` has them.
        dtype: in which it is computed.
    """
    if x.data is not None:
        return None
    shifted = shifts_only(*factors, ties, dtype)
    if shifted and (factors[1] >= 1).all():
        return _raised(planner, x, factors[1] - 1, dtype)
    if shifted and ties == "floor":
        return _lowered(planner, x, constants(1 - factors[1]))
    multiplier, shift = (each.reshape(-1) for each in factors)
    along: int | None = axis
    if all((each == each[:1]).all() for each in (multiplier, shift)):
        multiplier = multiplier[:1]
        shift = shift[:1]
        along = None
    if ties == "floor" or not _fits(x, multiplier, shift, dtype):
        return None
    amounts = 1 - shift
    if shifted and ties == "up" and along is None and x.low < 0:  # half joins a bias
        half = planner.compose("ADD", (x, constant(1 << int(amounts[0]) - 1)))
        return _lowered(planner, half, constants(amounts))
    powers = multiplier == POWER_OF_TWO
    to_even = ties == "even" and bool(powers.all()) and 0 <= amounts.min() <= amounts.max() < _DOWN
    if to_even and max(-x.low, x.high) + (1 << int(amounts.max())) < 1 << 31:
        return planner.compose("TO_EVEN", (x,), amounts, along)
    if ties == "away" and multiplier.min() < 0:
        return None
    apart = ties == "even" or (ties == "away" and x.low < 0)
    if apart and _reaches_half(largest_along(x, along), multiplier, 31 - shift):
        found = _rounded_apart(planner, x, ties, (multiplier, shift, along))
    else:
        found = planner.compose("RESCALE", (x,), multiplier, shift, along)
    if found.fits_int32:
        return found
    # Products have 32 bits, but those by powers of two as many as the data.
    if shifted or (ties == "up" and powers.any() and bits(dtype) == 64):
        if powers.all():
            return found
        return None
    return planner.compose("WRAP", (found,), "int32")


def _fits(x: Item, multiplier: Array, shift: Array, dtype: str) -> bool:
    """True if dtypes hold all products, and what powers of two add their half to."""
    if not multiplier.size or shift.max() > 30 or shift.min() < -64:
        return False
    right = 1 - int(shift[multiplier == POWER_OF_TWO].min(initial=1))
    width = bits(dtype)
    if 0 < right < width and x.high + (1 << (right - 1)) > integer_range(dtype)[1]:
        return False
    most = max(-x.low, x.high)
    left = int(max(shift.max(), 0))
    return most < 1 << 32 and most * int(np.abs(multiplier).max()) << left < _MOST


def _raised(planner: Planner, x: Item, up: Array, dtype: str) -> Item | None:
    """x << up in a dtype, as a multiple that programs apply while they load; None for others."""
    if not up.any():
        return x
    if not x.fits_int32 or up.max() >= _DOWN:
        return None
    times = constants(np.left_shift(np.int64(1), up.astype(np.int64)))
    return planner.wrapped(planner.compose("MUL", (x, times)), dtype, x.shape)


def _lowered(planner: Planner, x: Item, down: Item) -> Item:
    """x >> down."""
    count = down.as_scalar()
    if count.data is not None and 0 <= count.low == count.high <= _DOWN and x.fits_int32:
        return planner.compose("SHIFT", (x,), count.low)
    return planner.compose("RIGHT", (x, count))


def _reaches_half(most: Array, factor: Array, amounts: Array) -> bool:
    """True if ``x * factor * 2^-amounts`` can be a half for some |x| up to ``most``."""
    lowest = np.where(factor != 0, factor & -factor, 1)
    odd = np.left_shift(np.int64(1), np.clip(amounts, 1, 63) - 1) // lowest
    reached = most.reshape(odd.shape if most.size > 1 else ()) >= odd
    return bool((reached & (factor != 0) & (odd > 0) & (amounts > 0)).any())


def _rounded_apart(planner: Planner, x: Item, ties: str, params: tuple[Any, ...]) -> Item:
    """The rounding by the results of x and -x, which RESCALE both rounds up."""

    def up(value: Item) -> Item:
        return planner.compose("RESCALE", (value,), *params)

    def minus(value: Item) -> Item:
        return planner.compose("SUB", (constant(0), value))

    planner.materialise(x)
    if ties == "away":
        size = up(planner.compose("MAX", (x, minus(x))))
        is_negative = planner.compose("LESS", (x, constant(0)))
        return planner.compose("SELECT", (is_negative, minus(size), size))
    upper = up(x)
    tie = planner.compose("SUB", (upper, minus(up(minus(x)))))
    is_odd = planner.compose("AND", (upper, constant(1)))
    return planner.compose("SUB", (upper, planner.compose("MUL", (tie, is_odd))))


def largest_along(item: Item, axis: int | None) -> Array:
    """Largest magnitude, one for all or one for each index of an axis."""
    whole = np.array([max(abs(item.low), abs(item.high))])
    chain = item.chain
    if axis is None or item.view is not None:
        return whole
    if item.product is not None and item.product.channel_axis == axis:
        return np.maximum(np.abs(item.product.low), np.abs(item.product.high))
    if chain is None or chain.op != "ADD" or (held := chain.args[1].data) is None:
        return whole
    inner, added = chain.args
    # In an operand of another shape, the axis could be another one.
    if inner.shape != item.shape or not all(a.low > -_MOST and a.high < _MOST for a in chain.args):
        return whole
    if added.shape and shift_axis(replace(added, low=0, high=0), item.shape) != axis:
        return whole
    return np.asarray(largest_along(inner, axis) + np.abs(held.astype(np.int64)).reshape(-1))


# ---- rules ---------------------------------------------------------------------------------------


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
    """A choice by a bool."""
    condition, x, y = args
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
    attrs = step.attrs
    x = args[0]
    vectors = [arg.data for arg in args[1:] if arg.data is not None]
    if len(vectors) + 1 < len(args) or attrs.rounding == TFLM:
        return False
    dtype = attrs.compute_dtype
    shape = x.shape
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
    limits = limits_of(attrs)
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
    """Shift by numbers of bits."""
    return planner.settle(step, _lowered(planner, *args))


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
