"""Convolution of numpy arrays in NCHW/OIHW: im2col and BLAS, or a loop over the kernel's taps.

Integers are carried in the smallest float dtype that is exact for the values at hand
(``exact_matmul``), so that int8 networks run at sgemm speed with the bits of an int32 kernel.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compiler.ops.nn.exact_matmul import as_result, working_dtype
from compiler.ops.nn.window import extent, pad_spatial, tap
from compiler.ops.number_format import Array

# Channels of a depthwise convolution are done in runs whose input, product and sum stay in cache.
_RUN_BYTES = 1 << 18
# Rows of at most so many elements are short for a loop of numpy: there channels lie side by side.
_SHORT_ROW = 64
# From this width of a depthwise kernel on, BLAS is faster, though half of its products are by 0.
_BAND_COLUMNS = 15


def convolve(
    data: Array,
    weight: Array,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    dtype: str,
) -> Array:
    """Grouped 2-D convolution.

    Args:
        data: (N, C, H, W).
        weight: (O, C/groups, kh, kw).
        strides: (vertical, horizontal), in elements.
        padding: (top, left, bottom, right), in elements; reads 0.
        dilation: (vertical, horizontal) distance of taps.
        groups: divides C and O.
        dtype: of the result (N, O, OH, OW); integers wrap to it.
    """
    work = working_dtype(dtype, data, weight, (1, 2, 3))
    padded = pad_spatial(data.astype(work, copy=False), padding, 0)
    kernel = weight.astype(work, copy=False)
    oh = (padded.shape[2] - extent(weight.shape[2], dilation[0])) // strides[0] + 1
    ow = (padded.shape[3] - extent(weight.shape[3], dilation[1])) // strides[1] + 1
    if weight.shape[1] != 1 or groups == 1:
        product = _grouped(padded, kernel, strides, dilation, groups, (oh, ow))
    else:
        padded = np.repeat(padded, weight.shape[0] // groups, axis=1)
        # The order of sums changes floats, but no integers.
        banded = data.dtype.kind in "iu" and strides[1] == dilation[1] == 1
        if banded and work.kind == "f" and weight.shape[3] >= _BAND_COLUMNS:
            product = _depthwise_bands(padded, kernel, strides[0], dilation[0], (oh, ow))
        else:
            product = _depthwise(padded, kernel, strides, dilation, (oh, ow))
    return as_result(product, dtype)


def _grouped(
    padded: Array,
    kernel: Array,
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    out: tuple[int, int],
) -> Array:
    """One matrix product per image and group: (O/G, K) @ (K, OH*OW)."""
    n = padded.shape[0]
    o, i, kh, kw = kernel.shape
    columns = _columns(padded, (kh, kw), strides, dilation, out)
    columns = columns.reshape(n, groups, i * kh * kw, out[0] * out[1])
    rows = kernel.reshape(groups, o // groups, i * kh * kw)
    product: Array = np.matmul(rows, columns)
    return product.reshape(n, o, *out)


def _columns(
    padded: Array,
    kernel_size: tuple[int, int],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    out: tuple[int, int],
) -> Array:
    """im2col: (N, C, kh, kw, OH, OW), contiguous. A 1 x 1 kernel of stride 1 copies nothing."""
    kh, kw = kernel_size
    if kh == kw == 1 and strides[0] == strides[1] == 1:
        return np.ascontiguousarray(padded)
    n, c = padded.shape[:2]
    columns = np.empty((n, c, kh, kw, *out), padded.dtype)
    for r in range(kh):
        for s in range(kw):
            columns[:, :, r, s] = tap(padded, r * dilation[0], s * dilation[1], out, strides)
    return columns


def _depthwise(
    padded: Array,
    kernel: Array,
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    out: tuple[int, int],
) -> Array:
    """Each channel times its own taps; runs of channels so that the working set stays in cache."""
    n = padded.shape[0]
    o, _, kh, kw = kernel.shape
    image_bytes = padded.shape[2] * padded.shape[3] * padded.itemsize
    run = max(1, _RUN_BYTES // max(1, image_bytes))
    if padded.shape[3] > _SHORT_ROW:
        result, scratch = (np.empty((n, c, *out), padded.dtype) for c in (o, min(run, o)))
    else:
        run = o
        last = (0, 3, 1, 2)
        padded = np.ascontiguousarray(padded.transpose(0, 2, 3, 1)).transpose(last)
        result, scratch = (np.empty((n, *out, o), padded.dtype).transpose(last) for _ in range(2))
    for start in range(0, o, run):
        stop = min(start + run, o)
        part = padded[:, start:stop]
        into = result[:, start:stop]
        product = scratch[:, : stop - start]
        taps = np.ascontiguousarray(kernel[start:stop, 0].transpose(1, 2, 0))[..., None, None]
        for r in range(kh):
            for s in range(kw):
                view = tap(part, r * dilation[0], s * dilation[1], out, strides)
                if r == s == 0:
                    np.multiply(view, taps[r, s], out=into)
                else:
                    np.multiply(view, taps[r, s], out=product)
                    into += product
    return np.ascontiguousarray(result)


def _depthwise_bands(
    padded: Array, kernel: Array, stride: int, dilation: int, out: tuple[int, int]
) -> Array:
    """Each row of a channel, in blocks, times a band matrix of one row of its kernel.

    Args:
        stride, dilation: vertical ones; the horizontal ones are 1.
    """
    n, channels, _, width = padded.shape
    kh, kw = kernel.shape[2:]
    blocks = -(-out[1] // kw)
    padded = np.pad(padded, ((0, 0), (0, 0), (0, 0), (0, (blocks + 1) * kw - 1 - width)))
    bands = np.zeros((channels, kh, 2 * kw - 1, kw), padded.dtype)
    for column in range(kw):
        bands[:, :, column : column + kw, column] = kernel[:, 0]
    result = np.empty((n, channels, *out), padded.dtype)
    for channel in range(channels):
        total = np.zeros((n * out[0] * blocks, kw), padded.dtype)
        for r in range(kh):
            rows = padded[:, channel, r * dilation :][:, : (out[0] - 1) * stride + 1 : stride]
            parts = sliding_window_view(rows, 2 * kw - 1, axis=2)[:, :, ::kw]
            total += parts.reshape(-1, 2 * kw - 1) @ bands[channel, r]
        result[:, channel] = total.reshape(n, out[0], blocks * kw)[:, :, : out[1]]
    return result
