"""Pools and reductions. An average lies between the bounds of what it averages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import bits, integer_range
from compiler.ops.reduce.axes import axes_of
from compiler.ranges.analysis import FRange, RangeContext
from compiler.ranges.interval import Interval, constant_interval


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
    """Whether a window may have no element of the data under any of its taps."""
    attrs = step.attrs
    sizes = step.args[0].type.concrete_shape[2:], step.result.type.concrete_shape[2:]
    for axis, (size, count) in enumerate(zip(*sizes)):
        taps, apart = attrs.pool_size[axis], attrs.dilation[axis]
        starts = np.arange(count, dtype=object) * attrs.strides[axis] - attrs.padding[axis]
        # The first tap at or behind element 0 must be one of the window's, and inside the data.
        skipped = np.maximum(-(starts // apart), 0)
        if any((skipped >= taps) | (starts + skipped * apart >= size)):
            return True
    return False


@FRange.register("nn.avg_pool2d")
def avg_pool2d(step: Step, ctx: RangeContext) -> Interval:
    """Between the elements' bounds, and 0 where padding counts or fills a window."""
    attrs, source = step.attrs, step.attrs.layout
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
