"""Pools as their taps, one strided Slice per window element, and other sums and averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.export.to_onnx.convert.reduce import reduced_axes
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.integer_rules.product import from_nchw, to_nchw
from compiler.export.to_onnx.ordered import larger, largest_along, summed_along
from compiler.ir.dataflow import Step
from compiler.ir.ty import bits, integer_range
from compiler.ops.nn.avg_pool2d import window_counts
from compiler.ops.nn.pool import padding_to_cover, pool_windows
from compiler.ops.number_format import Array


def _added(e: IntegerEmitter, a: str, b: str, dtype: str) -> str:
    return e.node("Add", [a, b])


def _combined_taps(
    step: Step, e: IntegerEmitter, combine: Callable[..., str], fill: int, work: str
) -> str:
    """(N, C, OH, OW) in ``work``: all elements of every window, combined two by two."""
    attrs, layout = step.attrs, step.attrs.layout
    shape = step.args[0].type.concrete_shape
    height, width = shape[layout.index("H")], shape[layout.index("W")]
    rows, columns = pool_windows(step.name, attrs, height, width)
    top, left, bottom, right = attrs.padding
    more = padding_to_cover(attrs, height, width, (rows, columns))
    name = to_nchw(e.widened(step.args[0], work), layout, e)
    pads = e.ints([0, 0, top, left, 0, 0, bottom + more[0], right + more[1]])
    padded = e.node("Pad", [name, pads, e.scalar(fill, work)])
    axes, strides = e.ints([2, 3]), e.ints(list(attrs.strides))
    total: str | None = None
    for r, s in np.ndindex(*attrs.pool_size):
        begin = [r * attrs.dilation[0], s * attrs.dilation[1]]
        end = [
            begin[0] + (rows - 1) * attrs.strides[0] + 1,
            begin[1] + (columns - 1) * attrs.strides[1] + 1,
        ]
        tap = e.node("Slice", [padded, e.ints(begin), e.ints(end), axes, strides])
        total = tap if total is None else combine(e, total, tap, work)
    assert total is not None, "a window has at least one element"
    return total


@FToInteger.register("nn.max_pool2d")
def max_pool2d(step: Step, e: IntegerEmitter) -> str:
    """Max of the taps; padding reads the smallest value of the dtype."""
    work, dtype = e.working_dtype(step), step.result.type.dtype
    largest = _combined_taps(step, e, larger, integer_range(dtype)[0], work)
    attrs = step.attrs
    return e.cast(from_nchw(largest, attrs.out_layout or attrs.layout, e), work, dtype)


@FToInteger.register("nn.avg_pool2d")
def avg_pool2d(step: Step, e: IntegerEmitter) -> str:
    """Sum of the taps in int64, divided by the count of each window."""
    attrs, shape = step.attrs, step.args[0].type.concrete_shape
    layout = attrs.layout
    counts = window_counts(attrs, shape[layout.index("H")], shape[layout.index("W")])
    total = _combined_taps(step, e, _added, 0, "int64")
    mean = from_nchw(_quotient(total, counts, e), attrs.out_layout or layout, e)
    return e.writer.cast(mean, step.result.type.dtype)


def _quotient(total: str, counts: Array, e: IntegerEmitter) -> str:
    """Division that truncates toward zero, as ONNX's Div of integers does."""
    return e.node("Div", [total, e.array(counts, "int64")])


def _reduced(step: Step, e: IntegerEmitter, axes: Sequence[int], keepdims: bool) -> str:
    """Sum over axes in int64."""
    data = step.args[0]
    reach = 1 << bits(data.type.dtype)
    return summed_along(step, e, e.widened(data, "int64"), axes, keepdims, reach)


def _mean(step: Step, e: IntegerEmitter, axes: Sequence[int], keepdims: bool) -> str:
    shape = step.args[0].type.concrete_shape
    count = np.prod([shape[axis] for axis in axes], dtype=np.int64)
    quotient = _quotient(_reduced(step, e, axes, keepdims), np.asarray(count), e)
    return e.writer.cast(quotient, step.result.type.dtype)


def _image_axes(step: Step) -> list[int]:
    return sorted(step.attrs.layout.index(letter) for letter in "HW")


@FToInteger.register("nn.global_avg_pool2d")
def global_avg_pool2d(step: Step, e: IntegerEmitter) -> str:
    """Sum over the image in int64, divided by its size."""
    return _mean(step, e, _image_axes(step), True)


@FToInteger.register("mean")
def mean(step: Step, e: IntegerEmitter) -> str:
    """Sum over the axes in int64, divided by their size."""
    return _mean(step, e, reduced_axes(step), bool(step.attrs.keepdims))


@FToInteger.register("sum")
def reduce_sum(step: Step, e: IntegerEmitter) -> str:
    """ReduceSum in int64, because onnxruntime's own in int32 saturates."""
    total = _reduced(step, e, reduced_axes(step), bool(step.attrs.keepdims))
    return e.cast(total, "int64", step.result.type.dtype)


@FToInteger.register("nn.global_max_pool2d")
def global_max_pool2d(step: Step, e: IntegerEmitter) -> str:
    """The largest of the image."""
    work, data = e.working_dtype(step), step.args[0]
    name, shape = e.widened(data, work), data.type.concrete_shape
    largest = largest_along(e, name, shape, _image_axes(step), True, work)
    return e.cast(largest, work, step.result.type.dtype)
