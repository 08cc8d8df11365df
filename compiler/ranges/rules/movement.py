"""Operators that move integers: the bounds move along, by the operator itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.dataflow import Step, Value
from compiler.ops.number_format import Array
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.transform.scatter import most_updates
from compiler.ranges.analysis import FRange, RangeContext, anything
from compiler.ranges.interval import Bound, Interval, constant_interval, interval
from compiler.ranges.rules.table import entries

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
    rank, axis, batch = len(step.result.type.shape), step.attrs.axis, step.attrs.batch_dims
    if data.data is not None and data.data.ndim == 1 and data.data.size:
        held = ctx.of(places)
        all_of = step.attrs.mode == "wrap"
        ends = (0, data.data.size) if all_of else (held.lowest, held.highest)
        return entries(data.data, *ends, rank)
    kept = ctx.of(data).along([axis])
    shape, between = kept.low.shape, (1,) * (len(places.type.shape) - batch)
    shape = (*shape[:axis], *between, *shape[axis + 1 :])
    return interval(kept.low.reshape(shape), kept.high.reshape(shape))


@FRange.register("scatter_nd")
def scatter(step: Step, ctx: RangeContext) -> Interval:
    """The data or an update, which of them where bounds decide the rows; sums of the data and as
    many updates as can meet at one row, or fewer, in any order."""
    data, indices, updates = step.args
    first, new = ctx.of(data).along([0]), ctx.of(updates).along([0])
    if step.attrs.mode in ("update", "max", "min"):
        held = [ctx.of(value) for value in step.args]
        most = max(value.type.num_elements for value in step.args)
        wide = any(bounds.highest > _INT64_MAX for bounds in held)
        if np.array_equal(held[1].low, held[1].high) and most <= MAX_MOVED and not wide:
            low = _moved(step, [(bounds.low, v) for bounds, v in zip(held, step.args)])
            return interval(low, _moved(step, [(b.high, v) for b, v in zip(held, step.args)]))
        return first.union(new) if updates.type.num_elements else first
    if step.attrs.mode != "add":
        ctx.report(step, "products of updates cannot be bounded")
        return anything(step.result)
    rows = data.type.concrete_shape[0]
    count = most_updates(indices.data, indices.type.concrete_shape, rows)
    terms = new.with_value(0)
    total = interval(first.low + count * terms.low, first.high + count * terms.high)
    ctx.fits(step, f"the sum of {count} updates", total, step.result.type.dtype)
    return total
