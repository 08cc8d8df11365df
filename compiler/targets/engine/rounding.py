"""``round(x * multiplier * 2^(shift - 31))`` as few operators: one where halves allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ir.ty import bits, integer_range
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import shifts_only
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.targets.engine.planner import Planner
from compiler.targets.engine.programs import shift_axis
from compiler.targets.engine.values import Item, constant, constants

_MOST = 1 << 62
"""Beyond every product and sum that 64 bits hold for sure."""
_DOWN = 31
"""Bits by which 32 bits are shifted at most."""


def rescale(
    planner: Planner, x: Item, factors: tuple[Array, Array], axis: int, ties: str, dtype: str
) -> Item | None:
    """The values of x at another scale; None where 64 bits may not hold what they come from.

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
        return _lowered(planner, x, 1 - factors[1])
    multiplier, shift = (each.reshape(-1) for each in factors)
    along: int | None = axis
    if all((each == each[:1]).all() for each in (multiplier, shift)):
        multiplier, shift, along = multiplier[:1], shift[:1], None
    if ties == "floor" or not _fits(x, multiplier, shift, dtype):
        return None
    amounts = 1 - shift
    if shifted and ties == "up" and along is None and x.low < 0:  # half joins a bias
        half = planner.compose("ADD", (x, constant(1 << int(amounts[0]) - 1)))
        return _lowered(planner, half, amounts)
    powers = multiplier == POWER_OF_TWO
    to_even = ties == "even" and bool(powers.all()) and 0 <= amounts.min() <= amounts.max() < _DOWN
    if to_even and max(-x.low, x.high) + (1 << int(amounts.max())) < 1 << 31:
        return planner.compose("TO_EVEN", (x,), amounts, along)
    apart = ties == "even" or (ties == "away" and x.low < 0)
    if apart and _reaches_half(largest_along(x, along), multiplier, 31 - shift):
        found = _rounded_apart(planner, x, ties, (multiplier, shift, along))
    else:
        found = planner.compose("RESCALE", (x,), multiplier, shift, along)
    if found.fits_int32:
        return found
    # Products have 32 bits, but those by powers of two as many as the data.
    if shifted or (ties == "up" and powers.any() and bits(dtype) == 64):
        return found if powers.all() else None
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
    return most < 1 << 32 and most * int(multiplier.max()) << left < _MOST


def _raised(planner: Planner, x: Item, up: Array, dtype: str) -> Item | None:
    """x << up in a dtype, as a multiple that programs apply while they load; None for others."""
    if not up.any():
        return x
    if not x.fits_int32 or up.max() >= _DOWN:
        return None
    times = constants(np.left_shift(np.int64(1), up.astype(np.int64)))
    return planner.wrapped(planner.compose("MUL", (x, times)), dtype, x.shape)


def _lowered(planner: Planner, x: Item, down: Array) -> Item:
    """x >> down."""
    count = constants(down).as_scalar()
    if count.low == count.high <= _DOWN and x.fits_int32:
        return planner.compose("SHIFT", (x,), count.low)
    return planner.compose("RIGHT", (x, count))


def _reaches_half(most: Array, factor: Array, amounts: Array) -> bool:
    """True if ``x * factor * 2^-amounts`` can be a half for some |x| up to ``most``."""
    lowest = np.where(factor > 0, factor & -factor, 1)
    odd = np.left_shift(np.int64(1), np.clip(amounts, 1, 63) - 1) // lowest
    reached = most.reshape(odd.shape if most.size > 1 else ()) >= odd
    return bool((reached & (factor > 0) & (odd > 0) & (amounts > 0)).any())


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
    whole, chain = np.array([max(abs(item.low), abs(item.high))]), item.chain
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
