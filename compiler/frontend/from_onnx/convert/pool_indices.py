"""MaxPool with its second output: which element of the data each maximum is.

All elements under each window are gathered by constant indices, so argmax picks among them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.window import read_window
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
    # Position of tap k of output o along each axis, and whether it lies inside the data.
    position: list[NDArray[np.int64]] = []
    for size, s, before, k, d in zip(
        sizes, window.strides, window.begins, window.kernel, window.dilations
    ):
        starts = np.arange(size)[:, None] * s - before
        position.append(starts + np.arange(k)[None, :] * d)
    rank = len(spatial)
    row_major = np.zeros((), np.int64)
    stored = np.zeros((), np.int64)
    inside = np.ones((), bool)
    column_first = bool(node.attr("storage_order", 0))
    for axis, taps in enumerate(position):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = taps.shape
        at = taps.reshape(shape)
        inside = inside & (at >= 0) & (at < spatial[axis])
        at = np.clip(at, 0, spatial[axis] - 1)
        row_major = row_major + at * math.prod(spatial[axis + 1 :])
        others = spatial[:axis] if column_first else spatial[axis + 1 :]
        stored = stored + at * math.prod(others)
    outputs, taps_count = math.prod(sizes), math.prod(window.kernel)
    flat_index = np.broadcast_to(row_major, (*sizes, *window.kernel)).reshape(-1)
    flat_stored = np.broadcast_to(stored, (*sizes, *window.kernel)).reshape(outputs, taps_count)
    flat_inside = np.broadcast_to(inside, (*sizes, *window.kernel)).reshape(outputs, taps_count)
    image = node.call("reshape", data, newshape=(n * c, math.prod(spatial)))
    taken = node.call("take", image, node.const(flat_index.astype(np.int64)), axis=1)
    windows = node.call("reshape", taken, newshape=(n * c, outputs, taps_count))
    lowest = _lowest(data.tensor_type.dtype)
    masked = node.call("where", node.const(flat_inside), windows, node.scalar_like(lowest, data))
    best = node.call("argmax", masked, axis=(2,), keepdims=True, dtype="int64")
    result_shape = (n, c, *sizes)
    maxima = node.call("reshape", node.call("gather", masked, best, axis=2), newshape=result_shape)
    table = node.call("broadcast_to", node.const(flat_stored), shape=(n * c, outputs, taps_count))
    chosen = node.call(
        "reshape", node.call("gather", table, best, axis=2), newshape=(n * c, outputs)
    )
    images = (np.arange(n * c, dtype=np.int64) * math.prod(spatial)).reshape(-1, 1)
    indices = node.call("add", chosen, node.const(images))
    return [maxima, node.call("reshape", indices, newshape=result_shape)]


def _lowest(dtype: str) -> float:
    return -math.inf if dtype.startswith("float") else int(np.iinfo(dtype).min)
