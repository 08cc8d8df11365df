"""Windows as their taps, one strided Slice per window element, and sums along axes."""

from __future__ import annotations

import math

import numpy as np

from compiler.export.to_onnx.integer.emitter import FToInteger, Held, IntegerEmitter
from compiler.export.to_onnx.ordered import extreme, summed_along
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step
from compiler.ir.ty import bits, integer_range, is_integer
from compiler.ops.nn.pool import padding_to_cover, pool_windows
from compiler.ops.reduce.axes import axes_of


@FToInteger.register("nn.max_pool2d")
def max_pool2d(step: Step, e: IntegerEmitter) -> Held:
    """MaxPool; else Max of the taps, where padding reads the smallest value of the dtype."""
    attrs = step.attrs
    work = e.dtype_for(step)
    height, width = step.args[0].type.concrete_shape[2:]
    rows, columns = pool_windows(step.name, attrs, height, width)
    top, left, bottom, right = attrs.padding
    more = padding_to_cover(attrs, height, width, (rows, columns))
    narrow = max(attrs.padding) < min(attrs.pool_size) and set(attrs.dilation) == {1}
    if work == "float32" and narrow and not any(more):
        window = window_attributes(attrs, attrs.pool_size)
        return Held(e.node("MaxPool", [e.widened(step.args[0], work)], **window), work)
    pads = e.ints([0, 0, top, left, 0, 0, bottom + more[0], right + more[1]])
    fill = e.constant(integer_range(step.result.type.dtype)[0], work)
    padded = e.node("Pad", [e.widened(step.args[0], work), pads, fill])
    axes = e.ints([2, 3])
    strides = e.ints(list(attrs.strides))
    largest: str | None = None
    for r, s in np.ndindex(*attrs.pool_size):
        begin = [r * attrs.dilation[0], s * attrs.dilation[1]]
        end = [
            begin[0] + (rows - 1) * attrs.strides[0] + 1,
            begin[1] + (columns - 1) * attrs.strides[1] + 1,
        ]
        tap = e.node("Slice", [padded, e.ints(begin), e.ints(end), axes, strides])
        if largest is None:
            largest = tap
        else:
            largest = extreme(e, True, largest, tap, work)
    assert largest is not None, "a window has at least one element"
    return e.result(step, largest, work)


@FToInteger.register("sum")
def reduce_sum(step: Step, e: IntegerEmitter) -> Held:
    """ReduceSum in float32 or float64, in int64 where these are too short; int32 would saturate."""
    data = step.args[0]
    made_by = step.args[0].producer
    axes = axes_of(step)
    keepdims = bool(step.attrs.keepdims)
    count = math.prod(data.type.concrete_shape[axis] for axis in axes)
    work = e.exact_dtype(e.reach([data]) * count)
    if work is not None:
        return Held(summed_along(step, e, e.widened(data, work), axes, keepdims, 1), work)
    reach = 1 << bits(data.type.dtype)
    if made_by is not None and made_by.name == "cast" and is_integer(made_by.args[0].type.dtype):
        reach = min(reach, 1 << bits(made_by.args[0].type.dtype))
    total = summed_along(step, e, e.widened(data, "int64"), axes, keepdims, reach)
    return e.result(step, total, "int64")
