"""Three spatial axes, composed of two-dimensional operators.

A pool is separable: over height and width first, then over depth; the count of elements under an
averaging window is a product of counts per axis, so its mean is separable too. A convolution is one
of two dimensions whose channels are those of all slices under a window of the kernel's depth, so
that its sums are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.convert.window import Ints, Window, convolved
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

Pool = Callable[[Expr, Window], Expr]
Bias = Callable[[Expr], Expr]
_MOST_READS: Final = 1 << 20
"""Upper limit of slices times windows of a convolution: their places are a constant of the
module."""
_MOST_PHASES: Final = 64
"""Slices of a stride, whose channels one convolution has."""


def pool_volume(node: OnnxNode, data: Expr, window: Window, pool: Pool) -> Expr:
    """``pool`` over three axes of (N, C, D, H, W); ``pool(data, window)`` pools (N, C, H, W)."""
    n, c, depth, height, width = node.shape(data)
    within = window.along(slice(1, 3))
    along = window.along(slice(0, 1))
    if not within.moves_nothing:
        planes = node.call("reshape", data, newshape=(n, c * depth, height, width))
        planes = pool(planes, within)
        height, width = node.shape(planes)[2:]
        data = node.call("reshape", planes, newshape=(n, c, depth, height, width))
    if along.moves_nothing:
        return data
    if c == 1:  # slices are rows, and their elements channels, which lie together
        rows = node.call("reshape", data, newshape=(n, depth, height * width))
        image = node.call("transpose", rows, axes=(0, 2, 1))
        image = node.call("expand_dims", image, axis=3)
        rows = node.call("squeeze", pool(image, along.with_width_one()), axis=(3,))
        columns = node.call("transpose", rows, axes=(0, 2, 1))
    else:
        columns = node.call("reshape", data, newshape=(n, c, depth, height * width))
        columns = pool(columns, along.with_width_one())
    return node.call("reshape", columns, newshape=(n, c, -1, height, width))


def convolve_volume(node: OnnxNode, data: Expr, window: Window, bias: Bias) -> Expr:
    """Conv of (N, C, D, H, W); ``bias`` adds it to (N, C, H, W)."""
    kd = window.kernel[0]
    sd = window.strides[0]
    dd = window.dilations[0]
    begin = window.begins[0]
    depth = node.size(data, 2)
    groups = node.attr("group", 1)
    (count,) = window.along(slice(0, 1)).counts([depth])
    if count < 1:
        raise node.error(f"the kernel is deeper than the data: {kd} with dilation {dd}")
    _check_size(node, count, kd)
    places = np.arange(count)[:, None] * sd + np.arange(kd) * dd - begin
    weight = _plane_weight(node, np.arange(kd)[None], 1, (0, 3, 1, 4, 2, 5))
    reads = _windows(node, data, places, groups)
    planes = window.along(slice(1, 3))
    channels = node.shape(weight)[0]
    product = convolved(node, "nn.conv2d", reads, weight, planes, channels=channels)
    return _as_volume(node, bias(product), node.shape(data)[0], count)


def convolve_volume_transposed(
    node: OnnxNode, data: Expr, window: Window, extra: tuple[int, ...], bias: Bias
) -> Expr:
    """ConvTranspose of (N, C, D, H, W); ``extra`` is the output padding per axis.

    Outputs as many slices apart as the stride read the same taps of the kernel. All that a stride
    has are channels of one convolution, whose kernel is 0 where one of them reads no tap.
    """
    kd = window.kernel[0]
    sd = window.strides[0]
    dd = window.dilations[0]
    begin = window.begins[0]
    depth = node.size(data, 2)
    groups = node.attr("group", 1)
    count = (depth - 1) * sd + (kd - 1) * dd + 1 + extra[0] - begin - window.ends[0]
    _check_size(node, count, kd, sd)
    offsets = np.arange(sd)[:, None] + begin - np.arange(kd) * dd
    slices = np.unique(offsets[offsets % sd == 0] // sd)
    reads = offsets[:, None] == slices[:, None] * sd  # (phases, slices, taps)
    taps = np.where(reads.any(axis=2), reads.argmax(axis=2), kd)
    places = np.arange(-(-count // sd))[:, None] + slices
    weight = _plane_weight(node, taps, groups, (0, 4, 1, 3, 2, 5))
    reads = _windows(node, data, places, groups)
    sizes = {"channels": node.shape(weight)[1] * groups, "output_padding": extra[1:]}
    planes = window.along(slice(1, 3))
    product = convolved(node, "nn.conv2d_transpose", reads, weight, planes, **sizes)
    _, channels, height, width = node.shape(product)
    if min(groups, sd) > 1:
        apart = (-1, groups, sd, channels // (groups * sd), height * width)
        product = node.call("reshape", product, newshape=apart)
        product = node.call("transpose", product, axes=(0, 2, 1, 3, 4))
    product = node.call("reshape", product, newshape=(-1, channels // sd, height, width))
    return _as_volume(node, bias(product), node.shape(data)[0], count)


def _check_size(node: OnnxNode, count: int, taps: int, phases: int = 1) -> None:
    if count < 1 or count * taps > _MOST_READS or phases > _MOST_PHASES:
        raise node.error(
            f"{count} slices of depth read {taps} each, {phases} of them as channels",
            fix=f"legal are up to {_MOST_READS} reads and a stride of up to {_MOST_PHASES}",
        )


def _windows(node: OnnxNode, data: Expr, places: Ints, groups: int) -> Expr:
    """Slices of depth as channels: (N, C, D, H, W) as (N * windows, taps * C, H, W).

    Args:
        places: (windows, taps) slices that each window reads; zeros beyond 0 to D - 1.
        groups: of channels; the channels of a group lie together, tap by tap.
    """
    stack = _depth_first(node, data)
    n, depth, channels, height, width = node.shape(stack)
    count, taps = places.shape
    outside = (places < 0) | (places >= depth)
    if outside.any():
        behind = tuple((0, int(axis == 1)) for axis in range(5))
        stack = node.call("nn.pad", stack, node.scalar_like(0, stack), pad_width=behind)
    read = np.where(outside, depth, places).reshape(-1)
    if not np.array_equal(read, np.arange(depth)):
        stack = node.call("take", stack, node.const(read), axis=1)
    if min(groups, taps) > 1:
        parted = (n * count, taps, groups, channels // groups * height * width)
        stack = node.call("reshape", stack, newshape=parted)
        stack = node.call("transpose", stack, axes=(0, 2, 1, 3))
    return node.call("reshape", stack, newshape=(n * count, taps * channels, height, width))


def _as_volume(node: OnnxNode, slices: Expr, n: int, depth: int) -> Expr:
    """(N, C, D, H, W) of slices that follow each other, of which each sample has some more."""
    *_, channels, height, width = node.shape(slices)
    stack = node.call("reshape", slices, newshape=(n, -1, channels, height, width))
    if node.shape(stack)[1] > depth:
        stack = node.call("strided_slice", stack, begin=(0,), end=(depth,), strides=(1,), axes=(1,))
    return _depth_first(node, stack)


def _plane_weight(node: OnnxNode, taps: Ints, groups: int, axes: tuple[int, ...]) -> Expr:
    """The weight of some taps of the depth, whose input channels are those of ``_windows``.

    Args:
        taps: (phases, taps of each); that behind the last one is 0.
        axes: order of (group, its rows, columns, phases, taps, kernel of a plane); the first three
            are the rows of the result, the next two its columns.
    """
    known = node.known(1)
    rows, columns, depth, *plane = known.shape if known is not None else node.shape(node.arg(1))
    apart = (groups, rows // groups, columns, *taps.shape, math.prod(plane))
    shape = (math.prod(apart[axis] for axis in axes[:3]), -1, *plane)
    form = f"depth_{'_'.join(map(str, taps.reshape(-1)))}"
    behind = [(0, int(axis == 2 and depth in taps)) for axis in range(5)]

    def derived(w: Array) -> Array:
        return np.pad(w, behind)[:, :, taps].reshape(apart).transpose(axes).reshape(shape)

    whole = node.weight(1, form, derived)
    if whole is not None:
        return whole
    weight = node.arg(1)
    weight = node.call("nn.pad", weight, node.scalar_like(0, weight), pad_width=tuple(behind))
    weight = node.call("take", weight, node.const(taps.reshape(-1)), axis=2)
    weight = node.call("reshape", weight, newshape=apart)
    return node.call("reshape", node.call("transpose", weight, axes=axes), newshape=shape)


def _depth_first(node: OnnxNode, data: Expr) -> Expr:
    """(N, C, D, H, W) as (N, D, C, H, W)."""
    return node.call("transpose", data, axes=(0, 2, 1, 3, 4))
