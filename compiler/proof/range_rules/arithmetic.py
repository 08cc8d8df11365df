"""Sums, products, limits, comparisons and casts."""

from __future__ import annotations

from itertools import product

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.proof.interval import Bound, Interval, constant_interval, exact, interval
from compiler.proof.ranges import FRange, RangeContext


def corners(bounds: list[Bound]) -> Interval:
    """The interval that holds all of several candidate bounds."""
    return interval(np.minimum.reduce(np.broadcast_arrays(*bounds)), _largest(bounds))


def _largest(bounds: list[Bound]) -> Bound:
    found: Bound = np.maximum.reduce(np.broadcast_arrays(*bounds))
    return found


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
        ends = a.low * a.low, a.high * a.high
        return interval(np.where(crosses, 0, np.minimum(*ends)), np.maximum(*ends))
    return corners([x * y for x, y in product((a.low, a.high), (b.low, b.high))])


@FRange.register("bitwise_and")
def bitwise_and(step: Step, ctx: RangeContext) -> Interval:
    """Between 0 and a side that is not negative; anything of the dtype where both may be."""
    sides = [side for side in (ctx.of(v) for v in step.args) if side.lowest >= 0]
    rank = len(step.result.type.shape)
    if not sides:
        return constant_interval(*integer_range(step.result.type.dtype), rank)
    return constant_interval(0, min(side.highest for side in sides), rank)


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
    divisors = [b.low, b.high, *(np.clip(n, b.low, b.high) for n in (-1, 1))]
    found = []
    for end, divisor in product((a.low, a.high), divisors):
        end, divisor = np.broadcast_arrays(end, divisor)
        none = np.asarray(divisor == 0, bool)
        found.append(np.where(none, 0, end // np.where(none, 1, divisor)))
    bounds = corners(found)
    crosses = np.asarray((b.low <= 0) & (b.high >= 0), bool)
    low = np.where(crosses, np.minimum(bounds.low, 0), bounds.low)
    return interval(low, np.where(crosses, np.maximum(bounds.high, 0), bounds.high))


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
