"""MaxPool with its second output: which element of the data each maximum is.

All elements under each window are gathered by constant indices, so argmax picks among them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.window import Window, read_window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr

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
