"""Operators that move integers: the bounds move along, by the operator itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import TupleType
from compiler.ops.number_format import Array
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.proof.interval import Bound, Interval, constant_interval, interval, interval_of
from compiler.proof.ranges import FRange, RangeContext

MAX_MOVED = 1 << 16
"""Larger tensors get one pair of bounds for all elements."""
_INT64_MAX = (1 << 63) - 1


@FRange.register(
    "reshape",
    "reshape_like",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "transpose",
    "concatenate",
    "stack",
    "split",
    "strided_slice",
    "reverse",
    "tile",
    "repeat",
    "nn.pad",
    "nn.mirror_pad",
    "nn.depth_to_space",
    "nn.space_to_depth",
)
def move(step: Step, ctx: RangeContext) -> Sequence[Interval]:
    """The operator applied to the lower bounds and to the upper ones."""
    held = [ctx.of(value) for value in step.args]
    sizes = [value.type.num_elements for value in (*step.args, *step.results)]
    uniform = all(bounds.low.size == 1 for bounds in held)
    # The operators run on int64, which does not hold every uint64.
    wide = any(bounds.highest > _INT64_MAX for bounds in held)
    if max(sizes) > MAX_MOVED or wide or (uniform and len(held) == 1):
        low = min(bounds.lowest for bounds in held)
        high = max(bounds.highest for bounds in held)
        return [constant_interval(low, high, len(r.type.shape)) for r in step.results]
    lows = _moved(step, [(bounds.low, value) for bounds, value in zip(held, step.args)])
    highs = _moved(step, [(bounds.high, value) for bounds, value in zip(held, step.args)])
    return [interval(low, high) for low, high in zip(lows, highs, strict=True)]


def _moved(step: Step, bounds: Sequence[tuple[Bound, Value]]) -> list[Array]:
    arrays = [np.broadcast_to(b, v.type.concrete_shape).astype(np.int64) for b, v in bounds]
    types = tuple(result.type for result in step.results)
    out_type = types[0] if len(types) == 1 else TupleType(types)
    return FNumpyCompute.require(step.op)(step.attrs, arrays, out_type)


@FRange.register("image.resize2d", "nn.upsampling")
def resize(step: Step, ctx: RangeContext) -> Interval:
    """The nearest neighbour is one of the elements; of anything between them nothing is known."""
    if step.attrs.method != "nearest_neighbor":
        ctx.report(step, f"{step.attrs.method} interpolation of integers cannot be bounded")
    return ctx.of(step.args[0]).scalar(len(step.result.type.shape))


@FRange.register("take", "gather", "gather_nd")
def look_up(step: Step, ctx: RangeContext) -> Interval:
    """Any element of the data; in a one-dimensional table, elements between the extreme indices."""
    data, indices = step.args
    rank = len(step.result.type.shape)
    if step.name != "take" or data.data is None or data.data.ndim != 1 or not data.data.size:
        return ctx.of(data).scalar(rank)
    if step.attrs.mode == "wrap":
        return interval_of(data.data).scalar(rank)
    held, last = ctx.of(indices), data.data.size - 1
    first, end = (min(max(index, 0), last) for index in (held.lowest, held.highest))
    reached = data.data[first : end + 1]
    return constant_interval(int(reached.min()), int(reached.max()), rank)
