"""Sums, products, limits, comparisons and casts."""

from __future__ import annotations

from functools import reduce
from itertools import product

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ranges.analysis import FRange, RangeContext
from compiler.ranges.interval import Bound, Interval, constant_interval, exact, interval


def corners(bounds: list[Bound]) -> Interval:
    """The interval that holds all of several candidate bounds.

    Arithmetic on an array of rank 0 gives a number, which numpy would put into 64 bits, or into a
    double, beside another one: bounds that are no arrays of one dtype become arrays of numbers of
    any size again.
    """
    narrow = all(getattr(bound, "dtype", None) == np.int64 for bound in bounds)
    kind = np.int64 if narrow else object
    whole = [np.asarray(bound, kind) for bound in bounds]
    return interval(reduce(np.minimum, whole), reduce(np.maximum, whole))


@FRange.register("add")
def add(step: Step, ctx: RangeContext) -> Interval:
    """Bounds add up."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(a.low + b.low, a.high + b.high)


@FRange.register("subtract")
def subtract(step: Step, ctx: RangeContext) -> Interval:
    """The far ends of the two."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(a.low - b.high, a.high - b.low)


@FRange.register("multiply")
def multiply(step: Step, ctx: RangeContext) -> Interval:
    """The extreme corners; of a value with itself a square."""
    a, b = (ctx.of(v) for v in step.args)
    if step.args[0] is step.args[1]:
        crosses = np.asarray((a.low <= 0) & (a.high >= 0), bool)
        square = corners([a.low * a.low, a.high * a.high])
        return interval(np.where(crosses, 0, square.low), square.high)
    return corners([x * y for x, y in product((a.low, a.high), (b.low, b.high))])


@FRange.register("bitwise_and")
def bitwise_and(step: Step, ctx: RangeContext) -> Interval:
    """From 0 to a side that is not negative; of the bits of the larger one where none is."""
    both = [ctx.of(v) for v in step.args]
    sides = [side for side in both if side.lowest >= 0]
    rank = len(step.result.type.shape)
    if sides:
        return constant_interval(0, min(side.highest for side in sides), rank)
    least = min(side.lowest for side in both)
    most = max(side.highest for side in both)
    return constant_interval(-(1 << (-least - 1).bit_length()), most, rank)


@FRange.register("bitwise_or")
def bitwise_or(step: Step, ctx: RangeContext) -> Interval:
    """No less than either side; below 0 with a side that is, else of the bits of the larger one."""
    a, b = (ctx.of(v) for v in step.args)
    rank = len(step.result.type.shape)
    low = max(a.lowest, b.lowest) if min(a.lowest, b.lowest) >= 0 else min(a.lowest, b.lowest)
    if min(a.highest, b.highest) < 0:
        return constant_interval(low, -1, rank)
    most = max(a.highest, b.highest).bit_length()
    return constant_interval(low, (1 << most) - 1, rank)


@FRange.register("maximum")
def maximum(step: Step, ctx: RangeContext) -> Interval:
    """Bound by bound."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(np.maximum(a.low, b.low), np.maximum(a.high, b.high))


@FRange.register("minimum")
def minimum(step: Step, ctx: RangeContext) -> Interval:
    """Bound by bound."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(np.minimum(a.low, b.low), np.minimum(a.high, b.high))


@FRange.register("where")
def where(step: Step, ctx: RangeContext) -> Interval:
    """Either branch, or the only one that the condition allows."""
    chosen, first, second = (ctx.of(v) for v in step.args)
    always, never = chosen.low == 1, chosen.high == 0
    return interval(
        *(
            np.where(always, one, np.where(never, other, farther(one, other)))
            for one, other, farther in (
                (first.low, second.low, np.minimum),
                (first.high, second.high, np.maximum),
            )
        )
    )


@FRange.register("less")
def less(step: Step, ctx: RangeContext) -> Interval:
    """A bool, which the bounds may decide."""
    a, b = (ctx.of(v) for v in step.args)
    return _bools(a.high < b.low, a.low < b.high)


@FRange.register("equal")
def equal(step: Step, ctx: RangeContext) -> Interval:
    """A bool, which the bounds may decide."""
    a, b = (ctx.of(v) for v in step.args)
    apart = (a.low > b.high) | (b.low > a.high)
    return _bools((a.low == a.high) & (b.low == b.high) & ~apart, ~apart)


def _bools(always: Bound, ever: Bound) -> Interval:
    return interval(*(np.asarray(end).astype(bool).astype(np.int64) for end in (always, ever)))


@FRange.register("floor_divide")
def floor_divide(step: Step, ctx: RangeContext) -> Interval:
    """Monotone on each side of a divisor of 0, over which the quotient is 0."""
    a, b = (ctx.of(v) for v in step.args)
    found: list[Bound] = []
    for number in (b.low, b.high, *(np.clip(n, b.low, b.high) for n in (-1, 0, 1))):
        divisor = np.asarray(number, object)
        none = np.asarray(divisor == 0, bool)
        known = np.where(none, 1, divisor)
        found += [np.where(none, 0, np.asarray(end // known, object)) for end in (a.low, a.high)]
    return corners(found)


def _truths(side: Interval) -> tuple[Bound, Bound]:
    """Whether numbers are other than 0, always and ever."""
    low, high = (np.asarray(end).astype(bool) for end in (side.low, side.high))
    apart = np.asarray((side.low > 0) | (side.high < 0)).astype(bool)
    return exact(apart.astype(np.int64)), exact((low | high).astype(np.int64))


@FRange.register("cast")
def cast(step: Step, ctx: RangeContext) -> Interval:
    """The value itself, which must fit; a bool says whether it is not 0."""
    source = ctx.of(step.args[0])
    return interval(*_truths(source)) if step.result.type.dtype == "bool" else source
