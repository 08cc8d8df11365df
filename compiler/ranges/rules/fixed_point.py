"""Shifts and fixed-point products, with the 64-bit numbers inside them.

All are monotone in the data, so the bounds of the result are the results of the bounds.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import bits
from compiler.ranges.analysis import FRange, RangeContext, anything
from compiler.ranges.interval import Bound, Interval, constant_interval, exact
from compiler.ranges.rules.arithmetic import corners
from compiler.ranges.rules.product import largest

POWER_OF_TWO = 1 << 30
# A right shift beyond this leaves nothing of a product below 2^63.
MAX_RIGHT = 32
# A left shift beyond this leaves nothing of any integer but 0.
MAX_LEFT = 63

_SHIFTED, _PRODUCT = "the shifted data", "the 64-bit product"
_HALVED, _RESULT = "the data with half added", "the result in 32 bits"


@FRange.register("right_shift", "left_shift")
def shift(step: Step, ctx: RangeContext) -> Interval:
    """x >> n or x << n at the extremes of both."""
    data, amount = (ctx.of(v) for v in step.args)
    width = bits(step.result.type.dtype)
    if amount.lowest < 0 or amount.highest >= width:
        ctx.report(
            step,
            f"shifts by {amount.lowest} to {amount.highest} bits, legal are 0 to {width - 1}",
            bound=amount.highest,
        )
        return anything(step.result)
    pairs = product((data.low, data.high), (amount.low, amount.high))
    if step.name == "right_shift":
        return corners([x >> n for x, n in pairs])
    return corners([x << n for x, n in pairs])


@FRange.register("fixed_point_multiply")
def fixed_point_multiply(step: Step, ctx: RangeContext) -> Interval:
    """One multiplier and shift."""
    attrs = step.attrs
    return _scaled(step, ctx, exact(attrs.multiplier), exact(attrs.shift))


@FRange.register("fixed_point_multiply_per_axis")
def fixed_point_multiply_per_axis(step: Step, ctx: RangeContext) -> Interval:
    """A multiplier and shift per channel."""
    rank = len(step.args[0].type.shape)
    shape = [1] * rank
    shape[step.attrs.axis % rank] = -1
    constants = [value.data for value in step.args[1:]]
    if any(data is None for data in constants):
        ctx.report(step, "its multipliers or shifts are computed, so it cannot be bounded")
        return anything(step.result)
    multiplier, amount = (data.reshape(shape) for data in constants if data is not None)
    return _scaled(step, ctx, multiplier, amount)


def _scaled(step: Step, ctx: RangeContext, multiplier: Bound, amount: Bound) -> Interval:
    data, dtype = ctx.of(step.args[0]), step.result.type.dtype
    rank = len(step.result.type.shape)
    if (most := int(np.max(amount, initial=0))) > MAX_LEFT:
        ctx.report(step, f"shifts left by {most} bits, legal are 0 to {MAX_LEFT}", bound=most)
        return anything(step.result)
    worst = _Worst()
    ends = np.stack([data.low, data.high])
    # The largest product, shifted to the left; what is added to round has 62 bits at most.
    inside = data.magnitude.bit_length() + largest(multiplier).bit_length() + most
    values, m, e = (
        exact(p) if inside > 62 else p.astype(np.int64) for p in (ends, multiplier, amount)
    )
    results = _each(worst, values, m, e, bits(dtype))
    for what, (low, high) in worst.seen.items():
        limit = {_HALVED: dtype, _RESULT: "int32"}.get(what, "int64")
        ctx.fits(step, what, constant_interval(low, high, rank), limit)
    return corners([*results])


class _Worst:
    """Extremes of the numbers that a fixed-point product computes on its way."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}

    def meet(self, what: str, numbers: Bound) -> Bound:
        """Widen the bounds of a quantity, which start at 0, to numbers that it may be."""
        if numbers.size:
            low, high = self.seen.get(what, (0, 0))
            self.seen[what] = min(low, int(numbers.min())), max(high, int(numbers.max()))
        return numbers


def _each(worst: _Worst, values: Bound, m: Bound, e: Bound, width: int) -> Bound:
    plain = np.asarray((m != POWER_OF_TWO) & (-e <= MAX_RIGHT), bool)
    if plain.all():
        return _products(worst, values, m, e)
    values, m, e, plain = np.broadcast_arrays(values, m, e, plain)
    found = np.zeros_like(values)
    power = np.asarray(m == POWER_OF_TWO, bool)
    # The caller compares what is shifted to the left with the dtype.
    some = power & np.asarray(e >= 1, bool)
    found[some] = values[some] << (e[some] - 1)
    some = power & np.asarray((e < 1) & (1 - e < width), bool)
    right = 1 - e[some]
    found[some] = worst.meet(_HALVED, values[some] + (1 << (right - 1))) >> right
    found[plain] = _products(worst, values[plain], m[plain], e[plain])
    return found


def _products(worst: _Worst, values: Bound, m: Bound, e: Bound) -> Bound:
    right = np.maximum(-e, 0)
    shifted = worst.meet(_SHIFTED, values << np.maximum(e, 0))
    products = worst.meet(_PRODUCT, shifted * m)
    rounded = worst.meet(_PRODUCT, products + (1 << (30 + right)))
    return worst.meet(_RESULT, rounded >> (31 + right))
