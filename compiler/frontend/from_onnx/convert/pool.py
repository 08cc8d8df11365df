"""Pools; one spatial axis is imported as two with height 1, three in two steps.

For the second output of MaxPool, the places of the maxima, all elements under each window are
gathered by constant indices, so that argmax picks among them; an element beyond the data is the
first one of its window that is not.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.frontend.from_onnx.convert.volume import pool_volume
from compiler.frontend.from_onnx.convert.window import Window, read_window, spatial_axes
from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def _pool(node: OnnxNode, op: str, data: Expr, **extra: bool) -> Expr:
    axes = spatial_axes(node, data)
    window = read_window(node, node.attr("kernel_shape"), data)

    def pool_planes(planes: Expr, part: Window) -> Expr:
        return node.call(
            op,
            planes,
            pool_size=part.kernel,
            strides=part.strides,
            dilation=part.dilations,
            padding=part.padding,
            ceil_mode=bool(node.attr("ceil_mode", 0)),
            **extra,
        )

    if axes == 3:
        return pool_volume(node, data, window, pool_planes)
    if axes == 2:
        return pool_planes(data, window)
    row = node.call("expand_dims", data, axis=2)
    return node.call("squeeze", pool_planes(row, window.with_height_one()), axis=(2,))


@from_onnx("MaxPool")
def max_pool(node: OnnxNode) -> Expr | list[Expr]:
    """MaxPool, and where asked for the index of each maximum in the flattened data."""
    if len(node.proto.output) > 1 and node.proto.output[1]:
        return max_pool_with_indices(node)
    return _pool(node, "nn.max_pool2d", node.arg(0))


@from_onnx("AveragePool")
def average_pool(node: OnnxNode) -> Expr:
    """AveragePool."""
    padded = bool(node.attr("count_include_pad", 0))
    return _pool(node, "nn.avg_pool2d", node.arg(0), count_include_pad=padded)


@from_onnx("LpPool", since=2)
def lp_pool(node: OnnxNode) -> Expr:
    """The p-th root of a sum of |x| ** p: a mean that counts the padding, times its count."""
    if node.attr("ceil_mode", 0):
        raise node.error("windows beyond the padding (ceil_mode)", fix="export with ceil_mode=0")
    data = node.arg(0)
    p = node.attr("p", 2)
    if p == 2:
        powers = node.call("multiply", data, data)
    else:
        powers = node.call("power", node.call("abs", data), node.scalar_like(p, data))
    mean = _pool(node, "nn.avg_pool2d", powers, count_include_pad=True)
    total = node.times(mean, math.prod(node.attr("kernel_shape")))
    if p == 2:
        return node.call("sqrt", total)
    return node.call("power", total, node.scalar_like(1 / p, data))


@from_onnx("GlobalAveragePool")
@from_onnx("GlobalMaxPool")
def global_pool(node: OnnxNode) -> Expr:
    """Means or maxima of data of any rank."""
    data = node.arg(0)
    average = node.op_type == "GlobalAveragePool"
    rank = node.rank(data)
    if rank == 4:
        return node.call("nn.global_avg_pool2d" if average else "nn.global_max_pool2d", data)
    axes = tuple(range(2, rank))
    return node.call("mean" if average else "max", data, axis=axes, keepdims=True)


def max_pool_with_indices(node: OnnxNode) -> list[Expr]:
    """Maxima and their indices into the flattened (N, C, …) data.

    The indices count rows first, or columns first with ``storage_order=1``.
    """
    data = node.arg(0)
    n, c, *spatial = node.shape(data)
    window = read_window(node, node.attr("kernel_shape"), data)
    if node.attr("ceil_mode", 0):
        raise node.error("indices with ceil_mode=1 are not supported")
    sizes = window.counts(spatial)
    if any(size < 1 for size in sizes):
        raise node.error(f"the window {window.kernel} does not fit {tuple(spatial)}")
    outputs = math.prod(sizes)
    taps = math.prod(window.kernel)
    if outputs * taps > MAX_CONSTANT:
        raise node.error("indices of a window this large are not supported")
    stored = elements = window.elements(spatial)[0]
    if node.attr("storage_order", 0):
        stored = np.ravel_multi_index(np.unravel_index(elements, spatial), spatial, order="F")
    image = node.call("reshape", data, newshape=(n * c, math.prod(spatial)))
    taken = node.call("take", image, node.const(elements.reshape(-1)), axis=1)
    windows = node.call("reshape", taken, newshape=(n * c, outputs, taps))
    best = node.call("argmax", windows, axis=(2,), dtype="int64")
    entry = node.call("add", best, node.const(np.arange(outputs) * taps))
    chosen = node.call("take", node.const(stored.reshape(-1)), entry, axis=0)
    images = (np.arange(n * c) * math.prod(spatial)).reshape(-1, 1)
    indices = node.call("add", chosen, node.const(images))
    maxima = _pool(node, "nn.max_pool2d", data)
    return [maxima, node.call("reshape", indices, newshape=(n, c, *sizes))]


@from_onnx("MaxUnpool", since=9)
def max_unpool(node: OnnxNode) -> Expr:
    """Write maxima into zeros at indices into the flattened result, as onnxruntime does for a
    given output_shape as well; the last of several maxima at one index remains."""
    data = node.arg(0)
    indices = node.arg(1)
    n, c, *spatial = node.shape(data)
    window = read_window(node, node.attr("kernel_shape"), data)
    sizes = [
        (size - 1) * s + k - begin - end for size, k, s, _, begin, end in zip(spatial, *window)
    ]
    if node.has_input(2):
        shape = tuple(node.ints(2, "the shape"))
    else:
        shape = (n, c, *sizes)
    count = math.prod(node.shape(data))
    total = math.prod(shape)
    zeros = node.call(
        "full", node.scalar_like(0, data), shape=(total, 1), dtype=data.tensor_type.dtype
    )
    places = node.call("reshape", indices, newshape=(1, count))
    values = node.call("reshape", data, newshape=(count, 1))
    return node.call("reshape", node.call("scatter_nd", zeros, places, values), newshape=shape)
