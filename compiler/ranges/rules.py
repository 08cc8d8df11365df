"""Range rules, by what words compute; importing this fills the table FRange.

Convolutions and matrix products are bounded per output channel with the actual weights:

    out[o] = sum_k w[o,k] x[k]        high[o] = sum_k max(w, 0) high[k] + min(w, 0) low[k]

A partial sum may hold any subset of the terms, so its bound counts only terms of one sign:

    partial[o] = sum_k max(w, 0) max(high[k], 0) + min(w, 0) min(low[k], 0)

Padding reads 0 in place of some x[k], which is one of these subsets. An average lies between the
bounds of what it averages. Operators that move integers move bounds along by themselves. Shifts are
monotone in the data: the bounds of results are the results of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from itertools import product

import numpy as np

from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import bits, integer_range
from compiler.ops.number_format import Array
from compiler.ops.reduce.axes import axes_of
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.transform.scatter import most_updates
from compiler.ranges.analysis import FRange, RangeContext, anything, dtype_range
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


def _end_by_end(compute: np.ufunc, step: Step, ctx: RangeContext) -> Interval:
    """Lower bounds with lower bounds, upper bounds with upper ones."""
    a, b = (ctx.of(v) for v in step.args)
    return interval(compute(a.low, b.low), compute(a.high, b.high))


FRange.register("add")(partial(_end_by_end, np.add))
FRange.register("maximum")(partial(_end_by_end, np.maximum))
FRange.register("minimum")(partial(_end_by_end, np.minimum))


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
    """The bits of a mask in which the other side varies are free; of two sides that vary, from 0 to
    one that is not negative, or of the bits of the larger one."""
    both = [ctx.of(v) for v in step.args]
    rank = len(step.result.type.shape)
    for mask, other in (both, both[::-1]):
        one_sign = (other.lowest < 0) == (other.highest < 0)
        if mask.lowest == mask.highest and one_sign:
            varying = (1 << (other.lowest ^ other.highest).bit_length()) - 1
            least = other.lowest & ~varying & mask.lowest
            return constant_interval(least, least + (varying & mask.lowest), rank)
    sides = [side for side in both if side.lowest >= 0]
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
    if min(a.lowest, b.lowest) >= 0:
        low = max(a.lowest, b.lowest)
    else:
        low = min(a.lowest, b.lowest)
    if min(a.highest, b.highest) < 0:
        return constant_interval(low, -1, rank)
    most = max(a.highest, b.highest).bit_length()
    return constant_interval(low, (1 << most) - 1, rank)


@FRange.register("where")
def where(step: Step, ctx: RangeContext) -> Interval:
    """Either branch, or the only one that the condition allows."""
    chosen, first, second = (ctx.of(v) for v in step.args)
    always = chosen.low == 1
    never = chosen.high == 0
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
    """Return whether numbers are other than 0, always and ever."""
    low, high = (np.asarray(end).astype(bool) for end in (side.low, side.high))
    apart = np.asarray((side.low > 0) | (side.high < 0)).astype(bool)
    return exact(apart.astype(np.int64)), exact((low | high).astype(np.int64))


@FRange.register("cast")
def cast(step: Step, ctx: RangeContext) -> Interval:
    """The value itself, which must fit; a bool says whether it is not 0."""
    source = ctx.of(step.args[0])
    if step.result.type.dtype == "bool":
        return interval(*_truths(source))
    return source


# ---- products ------------------------------------------------------------------------------------


_INT64_ROOM = 1 << 62
_FLOAT64_ROOM = 1 << 53
_BLOCK = 1 << 20
"""Weights that are looked at together."""


def weighted_sums(
    positive: Array, negative: Array, on_positive: Bound, on_negative: Bound
) -> tuple[Bound, ...]:
    """sum_k positive[g,o,k] * on_positive[g,k,e] + negative[g,o,k] * on_negative[g,k,e], exactly.

    The sums are of float64 or int64 only where none can leave what that holds exactly, else of
    Python integers.

    Args:
        positive: (G, O, K), sums of the weights above 0.
        negative: the same of the values below 0.
        on_positive: (G, K, E), the bounds that each positive weight meets.
        on_negative: (G, K, E), the bounds that each negative weight meets.
    Returns:
        E arrays of (G, O) Python integers.
    """
    reach = max(map(abs, (*on_positive.flat, *on_negative.flat)), default=0)
    weight = (largest(positive) + largest(negative)) * positive.shape[2]
    room = max(reach, 1) * max(weight, 1)
    if room >= _INT64_ROOM:
        kind = object
    elif room >= _FLOAT64_ROOM:
        kind = np.int64
    else:
        kind = np.float64
    total = positive.astype(kind) @ on_positive.astype(kind)
    total = total + negative.astype(kind) @ on_negative.astype(kind)
    ends = exact(total if kind is object else total.astype(np.int64))
    return tuple(np.moveaxis(ends, -1, 0))


def largest(weight: Array) -> int:
    """The largest absolute value, which for the least int64 is no int64."""
    if weight.size:
        return max(abs(int(weight.min())), abs(int(weight.max())))
    return 0


def signed_sums(weight: Array) -> tuple[Array, Array]:
    """Sums of the positive and of the negative weights over the last axis; never wrapped."""
    fits = largest(weight) * max(weight.shape[-1], 1) < _INT64_ROOM
    wide = weight.astype(np.int64 if fits else object)
    parts = np.maximum(wide, 0), np.minimum(wide, 0)
    if weight.shape[-1] == 1:  # numpy takes longer to add up one number than many
        return parts[0][..., 0], parts[1][..., 0]
    return parts[0].sum(axis=-1), parts[1].sum(axis=-1)


def _bounded(
    step: Step, ctx: RangeContext, weight: Array, low: Bound, high: Bound, padded: bool
) -> tuple[Bound, Bound]:
    """Bounds per output channel; weight is (G, O, K, taps), low and high are (G, K)."""
    groups, outputs, *rest = weight.shape
    rows = max(1, _BLOCK // max(1, groups * math.prod(rest)))
    bottom = np.minimum(low, 0)
    top = np.maximum(high, 0)
    on_positive = np.stack([bottom, top, low, high], axis=-1)
    on_negative = np.stack([top, bottom, high, low], axis=-1)
    blocks = [
        weighted_sums(*signed_sums(weight[:, start : start + rows]), on_positive, on_negative)
        for start in range(0, max(outputs, 1), rows)
    ]
    ends = [np.concatenate(parts, axis=1).reshape(-1) for parts in zip(*blocks)]
    partial = (ends[0], ends[1])
    whole = (ends[2], ends[3])
    _check_widened(step, ctx)
    ctx.fits(step, "the accumulator", Interval(*partial), step.result.type.dtype)
    if padded:
        return partial
    return whole


@FRange.register("nn.conv2d")
def conv2d(step: Step, ctx: RangeContext) -> Interval:
    """Per output channel; spatial positions share their bounds."""
    data, kernel = step.args
    padded = any(step.attrs.padding)
    groups = step.attrs.groups
    outputs, inputs, *size = kernel.type.concrete_shape
    if kernel.data is None:
        return _of_two(step, ctx, inputs * math.prod(size), padded)
    weight = kernel.data.reshape(groups, outputs // groups, inputs, -1)
    low, high = (end.reshape(groups, inputs) for end in ctx.of(data).per(1, groups * inputs))
    bottom, top = _bounded(step, ctx, weight, low, high, padded)
    return interval(bottom.reshape(1, -1, 1, 1), top.reshape(1, -1, 1, 1))


@FRange.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, ctx: RangeContext) -> Interval:
    """Per column of a constant on the right, per row of one on the left, for each matrix of it;
    else every product at its worst."""
    left = step.args[1].data is None
    computed, known = reversed(step.args) if left else step.args
    if known.data is None or known.data.ndim < 2:
        return _of_two(step, ctx, step.args[0].type.concrete_shape[-1])
    weight = known.data if left else np.swapaxes(known.data, -1, -2)
    *lead, units, terms = weight.shape
    weight = weight.reshape(math.prod(lead), units, terms, 1)
    ends = ctx.of(computed).per(-2 if left else -1, terms)
    low, high = (np.broadcast_to(end, (len(weight), terms)) for end in ends)
    bottom, top = _bounded(step, ctx, weight, low, high, False)
    shape = (*lead, units, 1) if left else (*lead, 1, units)
    return interval(bottom.reshape(shape), top.reshape(shape))


def _of_two(step: Step, ctx: RangeContext, terms: int, padded: bool = False) -> Interval:
    """Sums of products of two computed tensors."""
    a, b = (ctx.of(v) for v in step.args)
    ends = [x * y for x in (a.lowest, a.highest) for y in (b.lowest, b.highest)]
    rank = len(step.result.type.shape)
    partial = constant_interval(terms * min(*ends, 0), terms * max(*ends, 0), rank)
    _check_widened(step, ctx)
    ctx.fits(step, "the accumulator", partial, step.result.type.dtype)
    if padded:
        return partial
    return constant_interval(terms * min(ends), terms * max(ends), rank)


def _check_widened(step: Step, ctx: RangeContext) -> None:
    """Operands are converted to the dtype of the result first, which must hold them."""
    dtype = step.result.type.dtype
    low, high = dtype_range(dtype)
    for value in step.args:
        own = dtype_range(value.type.dtype)
        if own[0] < low or own[1] > high:
            ctx.fits(step, "an operand", ctx.of(value), dtype)


# ---- pools ---------------------------------------------------------------------------------------


def _check_sum(
    step: Step, ctx: RangeContext, bounds: Interval, count: int, averaged: bool = True
) -> None:
    """The sum of ``count`` elements, in any order, in the dtype of the data but at least int32;
    averages of uint64 are made in int64."""
    dtype = step.result.type.dtype
    wide = dtype if bits(dtype) >= 32 else "int32"
    wide = "int64" if averaged and dtype == "uint64" else wide
    total = bounds.with_value(0)
    partial = Interval(total.low * count, total.high * count)
    ctx.fits(step, f"the sum of {count} elements", partial, wide)


@FRange.register("nn.max_pool2d")
def max_pool2d(step: Step, ctx: RangeContext) -> Interval:
    """One of the elements; a window of padding only gives the smallest value of the dtype."""
    bounds = ctx.of(step.args[0]).along((2, 3))
    if _reads_only_padding(step):
        bounds = bounds.with_value(integer_range(step.result.type.dtype)[0])
    return bounds


def _reads_only_padding(step: Step) -> bool:
    """Return whether a window may have no element of the data under any of its taps."""
    attrs = step.attrs
    sizes = step.args[0].type.concrete_shape[2:], step.result.type.concrete_shape[2:]
    for axis, (size, count) in enumerate(zip(*sizes)):
        taps = attrs.pool_size[axis]
        apart = attrs.dilation[axis]
        starts = np.arange(count, dtype=object) * attrs.strides[axis] - attrs.padding[axis]
        # The first tap at or behind element 0 must be one of the window's, and inside the data.
        skipped = np.maximum(-(starts // apart), 0)
        if any((skipped >= taps) | (starts + skipped * apart >= size)):
            return True
    return False


@FRange.register("nn.avg_pool2d")
def avg_pool2d(step: Step, ctx: RangeContext) -> Interval:
    """Between the elements' bounds, and 0 where padding counts or fills a window."""
    attrs = step.attrs
    source = step.attrs.layout
    bounds = ctx.of(step.args[0]).along([source.index(letter) for letter in "HW"])
    _check_sum(step, ctx, bounds, math.prod(attrs.pool_size))
    if any(attrs.padding) or attrs.ceil_mode:
        bounds = bounds.with_value(0)
    order = [source.index(letter) for letter in attrs.out_layout or source]
    return Interval(bounds.low.transpose(order), bounds.high.transpose(order))


def _count(step: Step, axes: Sequence[int]) -> int:
    shape = step.args[0].type.concrete_shape
    return math.prod(shape[axis] for axis in axes)


def _dropped(step: Step, bounds: Interval, axes: Sequence[int]) -> Interval:
    """Without the reduced axes, unless they are kept."""
    if step.attrs.keepdims:
        return bounds
    shape = tuple(size for axis, size in enumerate(bounds.low.shape) if axis not in axes)
    return Interval(bounds.low.reshape(shape), bounds.high.reshape(shape))


@FRange.register("sum")
def reduce_sum(step: Step, ctx: RangeContext) -> Interval:
    """All elements at once; the result is the accumulator."""
    axes = axes_of(step)
    bounds = ctx.of(step.args[0]).along(axes)
    count = _count(step, axes)
    _check_sum(step, ctx, bounds, count, averaged=False)
    return _dropped(step, Interval(bounds.low * count, bounds.high * count), axes)


@FRange.register("max")
def extremum(step: Step, ctx: RangeContext) -> Interval:
    """One of the elements."""
    axes = axes_of(step)
    return _dropped(step, ctx.of(step.args[0]).along(axes), axes)


@FRange.register("argmax")
def position(step: Step, ctx: RangeContext) -> Interval:
    """A row-major number of the elements along the axes."""
    last = _count(step, axes_of(step)) - 1
    return constant_interval(0, last, len(step.result.type.shape))


# ---- tables --------------------------------------------------------------------------------------


_RADICANDS = 1 << 62


@FRange.register("lookup")
def lookup(step: Step, ctx: RangeContext) -> Interval:
    """Between the least and the greatest entry that the operand's bounds reach."""
    rank = len(step.result.type.shape)
    table = step.args[1].data
    if table is None:
        return ctx.of(step.args[1]).scalar(rank)
    source = ctx.of(step.args[0])
    lowest = integer_range(step.args[0].type.dtype)[0]
    return entries(table, source.lowest - lowest, source.highest - lowest, rank)


def entries(table: Array, low: int, high: int, rank: int) -> Interval:
    """Bounds of the entries between two places, each limited to the table."""
    first, end = (min(max(place, 0), table.size - 1) for place in (low, high))
    reached = table[first : end + 1]
    return constant_interval(int(reached.min()), int(reached.max()), rank)


@FRange.register("isqrt")
def isqrt(step: Step, ctx: RangeContext) -> Interval:
    """Monotone; of what has 62 bits."""
    source = ctx.of(step.args[0])
    rank = len(step.result.type.shape)
    if source.lowest < 0 or source.highest >= _RADICANDS:
        reach = source.lowest if source.lowest < 0 else source.highest
        ctx.report(step, f"its radicand may reach {reach}, legal are 0 to 2^62 - 1", bound=reach)
        return anything(step.result)
    return constant_interval(math.isqrt(source.lowest), math.isqrt(source.highest), rank)


# ---- moves ---------------------------------------------------------------------------------------


MAX_MOVED = 1 << 16
"""Larger tensors get one pair of bounds for all elements."""
_INT64_MAX = (1 << 63) - 1


@FRange.register("transpose")
def transpose(step: Step, ctx: RangeContext) -> Interval:
    """Axis by axis, however large the tensor is."""
    held = ctx.of(step.args[0])
    return Interval(held.low.transpose(step.attrs.axes), held.high.transpose(step.attrs.axes))


@FRange.register("reshape", "strided_slice", "broadcast_to", "concatenate", "nn.pad")
def move(step: Step, ctx: RangeContext) -> Interval:
    """The operator applied to the lower bounds and to the upper ones."""
    held = [ctx.of(value) for value in step.args]
    sizes = [value.type.num_elements for value in (*step.args, step.result)]
    uniform = all(bounds.low.size == 1 for bounds in held)
    # The operators run on int64, which does not hold every uint64.
    wide = any(bounds.highest > _INT64_MAX for bounds in held)
    if max(sizes) > MAX_MOVED or wide or (uniform and len(held) == 1):
        lowest = min(bounds.lowest for bounds in held)
        highest = max(bounds.highest for bounds in held)
        return constant_interval(lowest, highest, len(step.result.type.shape))
    low = _moved(step, [(bounds.low, value) for bounds, value in zip(held, step.args)])
    high = _moved(step, [(bounds.high, value) for bounds, value in zip(held, step.args)])
    return interval(low, high)


def _moved(step: Step, bounds: Sequence[tuple[Bound, Value]]) -> Array:
    arrays = [np.broadcast_to(b, v.type.concrete_shape).astype(np.int64) for b, v in bounds]
    (moved,) = FNumpyCompute.require(step.op)(step.attrs, arrays, step.result.type)
    return moved


@FRange.register("take")
def take(step: Step, ctx: RangeContext) -> Interval:
    """Any element along the axis; of a table, elements between the extreme places."""
    data, places = step.args
    rank = len(step.result.type.shape)
    axis = step.attrs.axis
    batch = step.attrs.batch_dims
    if data.data is not None and data.data.ndim == 1 and data.data.size:
        held = ctx.of(places)
        all_of = step.attrs.mode == "wrap"
        if all_of:
            ends = (0, data.data.size)
        else:
            ends = (held.lowest, held.highest)
        return entries(data.data, *ends, rank)
    kept = ctx.of(data).along([axis])
    shape = kept.low.shape
    between = (1,) * (len(places.type.shape) - batch)
    shape = (*shape[:axis], *between, *shape[axis + 1 :])
    return interval(kept.low.reshape(shape), kept.high.reshape(shape))


@FRange.register("scatter_nd")
def scatter(step: Step, ctx: RangeContext) -> Interval:
    """The data or an update, which of them where bounds decide the rows; sums of the data and as
    many updates as can meet at one row, or fewer, in any order."""
    data, indices, updates = step.args
    first = ctx.of(data).along([0])
    new = ctx.of(updates).along([0])
    if step.attrs.mode in ("update", "max", "min"):
        held = [ctx.of(value) for value in step.args]
        most = max(value.type.num_elements for value in step.args)
        wide = any(bounds.highest > _INT64_MAX for bounds in held)
        if np.array_equal(held[1].low, held[1].high) and most <= MAX_MOVED and not wide:
            low = _moved(step, [(bounds.low, v) for bounds, v in zip(held, step.args)])
            return interval(low, _moved(step, [(b.high, v) for b, v in zip(held, step.args)]))
        if updates.type.num_elements:
            return first.union(new)
        return first
    if step.attrs.mode != "add":
        ctx.report(step, "products of updates cannot be bounded")
        return anything(step.result)
    rows = data.type.concrete_shape[0]
    count = most_updates(indices.data, indices.type.concrete_shape, rows)
    terms = new.with_value(0)
    total = interval(first.low + count * terms.low, first.high + count * terms.high)
    ctx.fits(step, f"the sum of {count} updates", total, step.result.type.dtype)
    return total


# ---- shifts --------------------------------------------------------------------------------------


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
