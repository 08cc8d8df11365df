"""Pools of integers. Averages divide an exact sum and truncate toward zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.export.to_onnx.carried_emitter import (
    EXACT_ELSEWHERE,
    FLOAT_LIMIT,
    Carried,
    CarriedEmitter,
    FToCarried,
    narrowed,
)
from compiler.export.to_onnx.convert.nn import require_layout
from compiler.export.to_onnx.convert.tensor import truncated
from compiler.export.to_onnx.ordered import summed_along
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step
from compiler.ops.nn.avg_pool2d import window_counts
from compiler.ops.number_format import Array
from compiler.ops.reduce.axes import axes_of

Total = Callable[[str, int], str]
"""Writes the sum over each window of a tensor, whose elements have a magnitude of at most a bound,
in the tensor's dtype, and gives its name."""


@FToCarried.register("nn.max_pool2d")
def max_pool2d(step: Step, graph: CarriedEmitter) -> Carried:
    """MaxPool; a window that holds padding only would need the dtype's minimum."""
    attrs = step.attrs
    require_layout(step, graph, attrs.layout)
    if any(p >= k for p, k in zip(attrs.padding, (*attrs.pool_size, *attrs.pool_size))):
        raise graph.refuse(step, f"padding {attrs.padding} reaches past window {attrs.pool_size}")
    source = graph.carried(step.args[0])

    window = window_attributes(attrs, attrs.pool_size)
    ceil_mode = int(attrs.ceil_mode)
    name = graph.node("MaxPool", [graph.as_float(source)], ceil_mode=ceil_mode, **window)
    return Carried(name, "float32", source.low, source.high)


@FToCarried.register("nn.global_max_pool2d")
def global_max_pool2d(step: Step, graph: CarriedEmitter) -> Carried:
    """GlobalMaxPool."""
    require_layout(step, graph, step.attrs.layout)
    source = graph.carried(step.args[0])
    name = graph.node("GlobalMaxPool", [graph.as_float(source)])
    return Carried(name, "float32", source.low, source.high)


@FToCarried.register("nn.avg_pool2d")
def avg_pool2d(step: Step, graph: CarriedEmitter) -> Carried:
    """Window sums as a depthwise convolution with ones, then the division."""
    attrs = step.attrs
    require_layout(step, graph, attrs.layout)
    channels, height, width = step.args[0].type.concrete_shape[1:]
    out = step.result.type.concrete_shape[2:]
    counts = window_counts(attrs, height, width)
    taps = attrs.pool_size[0] * attrs.pool_size[1]
    pads = list(attrs.padding)
    for axis, size in enumerate((height, width)):
        reach = (attrs.pool_size[axis] - 1) * attrs.dilation[axis] + 1
        needed = (out[axis] - 1) * attrs.strides[axis] + reach - size - pads[axis]
        pads[axis + 2] = max(pads[axis + 2], needed)
        if needed + attrs.strides[axis] <= pads[axis + 2]:
            what = "ceil_mode leaves out a window of padding"
            raise graph.refuse(step, what, fix=EXACT_ELSEWHERE)

    def total(name: str, reach: int) -> str:
        ones = graph.writer.constant(np.ones((channels, 1, *attrs.pool_size), "float32"))
        return graph.node(
            "Conv",
            [name, ones],
            strides=list(attrs.strides),
            pads=pads,
            dilations=list(attrs.dilation),
            group=channels,
            kernel_shape=list(attrs.pool_size),
        )

    return _average(step, graph, taps, counts, total)


@FToCarried.register("nn.global_avg_pool2d")
def global_avg_pool2d(step: Step, graph: CarriedEmitter) -> Carried:
    """Sum over height and width, then the division."""
    require_layout(step, graph, step.attrs.layout)
    height, width = step.args[0].type.concrete_shape[2:]
    counts = np.asarray(height * width)
    return _average(step, graph, height * width, counts, _summed(step, [2, 3], True, graph))


@FToCarried.register("mean")
def mean(step: Step, graph: CarriedEmitter) -> Carried:
    """Sum over the axes, then the division."""
    axes = list(axes_of(step))
    count = int(np.prod([step.args[0].type.concrete_shape[a] for a in axes]))
    total = _summed(step, axes, bool(step.attrs.keepdims), graph)
    return _average(step, graph, count, np.asarray(count), total)


@FToCarried.register("sum")
def reduce_sum(step: Step, graph: CarriedEmitter) -> Carried:
    """ReduceSum, in int64 where the sum is too large for float32."""
    axes = list(axes_of(step))
    count = int(np.prod([step.args[0].type.concrete_shape[a] for a in axes]))
    source = graph.carried(step.args[0])
    low, high = count * min(source.low, 0), count * max(source.high, 0)
    total = _summed(step, axes, bool(step.attrs.keepdims), graph)
    reach = source.magnitude
    if max(-low, high) < FLOAT_LIMIT:
        return Carried(total(graph.as_float(source), reach), "float32", low, high)
    return narrowed(total(graph.as_int64(source), reach), "int64", low, high, graph)


def _summed(step: Step, axes: list[int], keepdims: bool, graph: CarriedEmitter) -> Total:
    return lambda name, reach: summed_along(step, graph, name, axes, keepdims, reach)


def _average(step: Step, graph: CarriedEmitter, taps: int, counts: Array, total: Total) -> Carried:
    """trunc(sum / counts). A source that is base * L with counts dividing L needs no rounding:
    sum(base) * (L / counts)."""
    source = graph.carried(step.args[0])
    counts = counts.astype(np.int64)
    if source.multiple is not None:
        base, multiple = source.multiple
        low, high = taps * min(base.low, 0), taps * max(base.high, 0)
        factor = multiple // counts
        largest = int(factor.max()) * max(-low, high)
        exact = not np.any(multiple % counts)
        if exact and base.carrier == "float32" and largest < FLOAT_LIMIT:
            name = total(base.name, base.magnitude)
            if np.any(factor != 1):
                name = graph.node("Mul", [name, graph.float_constant(factor)])
            return Carried(name, "float32", low * int(factor.max()), high * int(factor.max()))
    low, high = taps * min(source.low, 0), taps * max(source.high, 0)
    if max(-low, high) >= FLOAT_LIMIT or source.carrier != "float32":
        return _wide_average(step, graph, taps, counts, total)
    # |sum| < 2^24 and whole: the rounded quotient never reaches the next integer.
    quotient = total(source.name, source.magnitude)
    if np.any(counts != 1):
        quotient = graph.node("Div", [quotient, graph.float_constant(counts)])
        quotient = graph.node("Floor", [quotient]) if low == 0 else truncated(quotient, graph)
    return Carried(quotient, "float32", min(source.low, 0), max(source.high, 0))


def _wide_average(
    step: Step, graph: CarriedEmitter, taps: int, counts: Array, total: Total
) -> Carried:
    """The sum in int64, whose division truncates."""
    source = graph.carried(step.args[0])
    if step.name == "nn.avg_pool2d":
        summed = _sum_of_digits(source, taps, total, graph)
    else:
        summed = total(graph.as_int64(source), source.magnitude)
    quotient = graph.node("Div", [summed, graph.writer.constant(counts)])
    return narrowed(quotient, "int64", min(source.low, 0), max(source.high, 0), graph)


def _sum_of_digits(source: Carried, taps: int, total: Total, graph: CarriedEmitter) -> str:
    """Window sums, which are convolutions and so float32, digit by digit of the data.

    x = sum of digit * base^k with 0 <= digit < base; the last one has the sign.
    """
    base = 1 << (((FLOAT_LIMIT - 1) // taps).bit_length() - 1)
    divisor = graph.ints([base])
    rest, magnitude, place = graph.as_int64(source), source.magnitude, 1
    summed: str | None = None
    while True:
        last = magnitude * taps < FLOAT_LIMIT
        digit = rest if last else graph.node("Mod", [rest, divisor], fmod=0)
        part = graph.writer.cast(total(graph.writer.cast(digit, "float32"), base), "int64")
        if place > 1:
            part = graph.node("Mul", [part, graph.ints([place])])
        summed = part if summed is None else graph.node("Add", [summed, part])
        if last:
            return summed
        rest = graph.node("Div", [graph.node("Sub", [rest, digit]), divisor])
        magnitude, place = magnitude // base + 1, place * base
