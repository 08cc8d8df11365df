"""Pools; one spatial axis is imported as two with height 1, three in two steps.

For the second output of MaxPool, the places of the maxima, all elements under each window are
gathered by constant indices, so that argmax picks among them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.volume import pool_volume
from compiler.frontend.from_onnx.convert.window import Window, read_window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def _pool(node: OnnxNode, op: str, data: Expr, **extra: bool) -> Expr:
    rank = node.rank(data)
    if rank not in (3, 4, 5):
        raise node.error(f"{rank - 2} spatial axes; one to three are supported")
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

    if rank == 5:
        return pool_volume(node, data, window, pool_planes)
    if rank == 4:
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
    data, p = node.arg(0), node.attr("p", 2)
    if p == 2:
        powers = node.call("multiply", data, data)
    else:
        powers = node.call("power", node.call("abs", data), node.scalar_like(p, data))
    mean = _pool(node, "nn.avg_pool2d", powers, count_include_pad=True)
    count = node.scalar_like(math.prod(node.attr("kernel_shape")), data)
    total = node.call("multiply", mean, count)
    return (
        node.call("sqrt", total)
        if p == 2
        else node.call("power", total, node.scalar_like(1 / p, data))
    )


def _global_pool(node: OnnxNode, op: str, reduction: str) -> Expr:
    data = node.arg(0)
    rank = node.rank(data)
    if rank == 4:
        return node.call(op, data)
    return node.call(reduction, data, axis=tuple(range(2, rank)), keepdims=True)


@from_onnx("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Expr:
    """GlobalAveragePool of any rank."""
    return _global_pool(node, "nn.global_avg_pool2d", "mean")


@from_onnx("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Expr:
    """GlobalMaxPool of any rank."""
    return _global_pool(node, "nn.global_max_pool2d", "max")


# One index per tap and output element is a constant of the module.
MAX_TAPS = 1 << 24


def max_pool_with_indices(node: OnnxNode) -> list[Expr]:
    """Maxima and their indices into the flattened (N, C, …) data.

    The indices count rows first, or columns first with ``storage_order=1``.
    """
    data = node.arg(0)
    n, c, *spatial = node.shape(data)
    window = read_window(node, node.attr("kernel_shape"), data)
    if node.attr("ceil_mode", 0):
        raise node.error("indices with ceil_mode=1 are not supported")
    sizes = [
        (size + before + after - (k - 1) * d - 1) // s + 1
        for size, before, after, k, d, s in zip(
            spatial, window.begins, window.ends, window.kernel, window.dilations, window.strides
        )
    ]
    if any(size < 1 for size in sizes):
        raise node.error(f"the window {window.kernel} does not fit {tuple(spatial)}")
    if math.prod(sizes) * math.prod(window.kernel) > MAX_TAPS:
        raise node.error("indices of a window this large are not supported")
    taps = _taps(window, spatial, sizes, column_first=bool(node.attr("storage_order", 0)))
    outputs = math.prod(sizes)
    image = node.call("reshape", data, newshape=(n * c, math.prod(spatial)))
    taken = node.call("take", image, node.const(taps.element.reshape(-1)), axis=1)
    windows = node.call("reshape", taken, newshape=(n * c, *taps.element.shape))
    lowest = _lowest(data.tensor_type.dtype)
    masked = node.call("where", node.const(taps.inside), windows, node.scalar_like(lowest, data))
    best = node.call("argmax", masked, axis=(2,), keepdims=True, dtype="int64")
    result_shape = (n, c, *sizes)
    maxima = node.call("reshape", node.call("gather", masked, best, axis=2), newshape=result_shape)
    table = node.call("broadcast_to", node.const(taps.stored), shape=(n * c, *taps.stored.shape))
    chosen = node.call(
        "reshape", node.call("gather", table, best, axis=2), newshape=(n * c, outputs)
    )
    images = (np.arange(n * c, dtype=np.int64) * math.prod(spatial)).reshape(-1, 1)
    indices = node.call("add", chosen, node.const(images))
    return [maxima, node.call("reshape", indices, newshape=result_shape)]


class _Taps(NamedTuple):
    """What every output reads: arrays (outputs, taps of a window).

    Attributes:
        element: int64, its position in an image, row by row; clamped into it.
        stored: int64, the number it has in the indices' own order.
        inside: bool, whether it lies in the image.
    """

    element: NDArray[np.int64]
    stored: NDArray[np.int64]
    inside: NDArray[np.bool_]


def _taps(window: Window, spatial: list[int], sizes: list[int], column_first: bool) -> _Taps:
    rank = len(spatial)
    index, stored, inside = np.zeros((), np.int64), np.zeros((), np.int64), np.ones((), bool)
    for axis, size in enumerate(sizes):
        starts = np.arange(size)[:, None] * window.strides[axis] - window.begins[axis]
        position = starts + np.arange(window.kernel[axis])[None, :] * window.dilations[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = position.shape
        at = position.reshape(shape)
        inside = inside & (at >= 0) & (at < spatial[axis])
        at = np.clip(at, 0, spatial[axis] - 1)
        index = index + at * math.prod(spatial[axis + 1 :])
        others = spatial[:axis] if column_first else spatial[axis + 1 :]
        stored = stored + at * math.prod(others)
    full, flat = (*sizes, *window.kernel), (math.prod(sizes), math.prod(window.kernel))
    return _Taps(*(np.broadcast_to(a, full).reshape(flat) for a in (index, stored, inside)))


def _lowest(dtype: str) -> float:
    return -math.inf if dtype.startswith("float") else int(np.iinfo(dtype).min)
