"""Sums, products, limits, comparisons and casts."""

from __future__ import annotations

from itertools import product

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.tensor.clip import integer_bound
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


@FRange.register("nn.bias_add")
def bias_add(step: Step, ctx: RangeContext) -> Interval:
    """add, with the bias along one axis."""
    data, bias = (ctx.of(v) for v in step.args)
    rank = len(step.args[0].type.shape)
    shape = [1] * rank
    shape[step.attrs.axis % rank] = -1
    return interval(data.low + bias.low.reshape(shape), data.high + bias.high.reshape(shape))


@FRange.register("subtract")
def subtract(step: Step, ctx: RangeContext) -> Interval:
    """The far ends of the two."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(a.low - b.high, a.high - b.low)


@FRange.register("multiply")
def multiply(step: Step, ctx: RangeContext) -> Interval:
    """The extreme corners."""
    a, b = (ctx.of(v) for v in step.args)
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


@FRange.register("clip")
def clip(step: Step, ctx: RangeContext) -> Interval:
    """max(min(x, high), low), on the truncated bounds."""
    source, dtype = ctx.of(step.args[0]), step.args[0].type.dtype
    low, high = (integer_bound(bound, dtype) for bound in (step.attrs.a_min, step.attrs.a_max))
    return interval(*(_most(_least(end, high), low) for end in (source.low, source.high)))


@FRange.register("nn.relu")
def relu(step: Step, ctx: RangeContext) -> Interval:
    """max(x, 0)."""
    source = ctx.of(step.args[0])
    return interval(np.maximum(source.low, 0), np.maximum(source.high, 0))


@FRange.register("negative")
def negative(step: Step, ctx: RangeContext) -> Interval:
    """The smallest value of the dtype saturates."""
    source = ctx.of(step.args[0])
    top = integer_range(step.result.type.dtype)[1]
    return interval(_least(-source.high, top), _least(-source.low, top))


@FRange.register("abs")
def absolute(step: Step, ctx: RangeContext) -> Interval:
    """The smallest value of the dtype saturates."""
    source = ctx.of(step.args[0])
    top = integer_range(step.result.type.dtype)[1]
    ends = [_least(abs(source.low), top), _least(abs(source.high), top)]
    crosses = np.asarray((source.low <= 0) & (source.high >= 0), bool)
    return interval(np.where(crosses, 0, _least(*ends)), _most(*ends))


def _least(a: Bound | int, b: Bound | int) -> Bound:
    """Element by element; arithmetic on an array of rank 0 gives a number, which numpy would put
    into 64 bits beside another one."""
    return np.asarray(np.minimum(np.asarray(a, object), np.asarray(b, object)), object)


def _most(a: Bound | int, b: Bound | int) -> Bound:
    """As ``_least``."""
    return np.asarray(np.maximum(np.asarray(a, object), np.asarray(b, object)), object)


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


@FRange.register("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
@FRange.register("logical_and", "logical_or", "logical_xor", "logical_not")
def compare(step: Step, ctx: RangeContext) -> Interval:
    """A bool, which the bounds may decide."""
    a, b = (ctx.of(v) for v in (step.args[0], step.args[-1]))
    if step.name.startswith("greater"):
        a, b = b, a
    if step.name.startswith("logical"):
        a, b = (interval(*_truths(side)) for side in (a, b))
    if step.name in ("less", "greater"):
        ends = a.high < b.low, a.low < b.high
    elif step.name in ("less_equal", "greater_equal"):
        ends = a.high <= b.low, a.low <= b.high
    elif step.name in ("logical_and", "logical_or"):
        nearer = np.minimum if step.name == "logical_and" else np.maximum
        ends = nearer(a.low, b.low), nearer(a.high, b.high)
    elif step.name == "logical_not":
        ends = 1 - a.high, 1 - a.low
    else:
        fixed = (a.low == a.high) & (b.low == b.high)
        apart = (a.low > b.high) | (b.low > a.high)
        ends = fixed & ~apart, ~apart
        if step.name != "equal":
            ends = apart, ~(fixed & ~apart)
    return interval(*(np.asarray(end).astype(bool).astype(np.int64) for end in ends))


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


@FRange.register(
    "annotation.stop_fusion",
    "annotation.cast_hint",
    "on_device",
    "device_copy",
    "copy",
    "round",
    "round_even",
    "floor",
    "ceil",
    "trunc",
)
def pass_through(step: Step, ctx: RangeContext) -> Interval:
    """The value itself."""
    return ctx.of(step.args[0])
