"""Samples at places between the elements, and patches that are put together again.

The places are constants of the model: what is read, and with which weight, is known at the import.
Source: the operators' specifications, ONNX GridSample since 16, AffineGrid since 20, Col2Im.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.indexing import summed_rows
from compiler.frontend.from_onnx.convert.resize import cubic
from compiler.frontend.from_onnx.convert.window import Window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

Floats = NDArray[np.float64]
_MOST_SAMPLES = 1 << 24


def _reflected(at: Floats, size: int, aligned: bool) -> Floats:
    """Places, mirrored at the ends of the axis until they lie inside."""
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if high == low:
        return np.zeros_like(at)
    beyond = np.mod(at - low, 2 * (high - low))
    return low + np.minimum(beyond, 2 * (high - low) - beyond)


def _inside(at: Floats, size: int, padding: str, aligned: bool) -> Floats:
    if padding == "border":
        return np.clip(at, 0, size - 1)
    outside = (at < (0 if aligned else -0.5)) | (at > size - (1 if aligned else 0.5))
    return np.where(outside, _reflected(at, size, aligned), at) if padding == "reflection" else at


def _taps(at: Floats, mode: str) -> tuple[Floats, Floats]:
    """Elements around each place, and their weights; both (taps, places)."""
    if mode == "nearest":
        return np.rint(at)[None], np.ones((1, at.size))
    first, part = np.floor(at), at - np.floor(at)
    if mode == "linear":
        return np.stack([first, first + 1]), np.stack([1 - part, part])
    places = np.stack([first + k for k in (-1, 0, 1, 2)])
    return places, cubic(np.stack([part + 1, part, 1 - part, 2 - part]), -0.75)


@from_onnx("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Expr:
    """Sums of the elements around constant places, each times its weight."""
    data, grid = node.arg(0), node.require_known(1, "the grid")
    batch, channels, *sizes = node.shape(data)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := node.attr("mode", "linear"), m)
    padding, aligned = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    if mode not in ("linear", "cubic", "nearest"):
        raise node.error(f"mode {mode!r} is not linear, cubic or nearest")
    places, weights = np.zeros((1, grid[..., 0].size), np.int64), np.ones((1, grid[..., 0].size))
    if places.size * 4 ** len(sizes) > _MOST_SAMPLES:
        raise node.error(f"a grid of {places.size} places is too large")
    for axis, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - axis].reshape(-1)
        # In the dtype of the grid, as onnxruntime has it: places may lie between two elements.
        at = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
        at = at.astype(np.float64)
        at = np.rint(at) if mode == "nearest" else at
        if mode != "cubic" or padding != "border":  # there each of the elements is moved inside
            at = _inside(at, size, padding, aligned)
        near, share = _taps(at, mode)
        if padding == "zeros":
            share = share * ((near >= 0) & (near < size))
        element = np.clip(_inside(near, size, padding, aligned), 0, size - 1).astype(np.int64)
        places = (places[:, None] * size + element).reshape(-1, at.size)
        weights = (weights[:, None] * share).reshape(-1, at.size)
    shape = (len(places), batch, -1)
    flat = node.call("reshape", data, newshape=(batch, channels, math.prod(sizes)))
    dims: dict[str, Any] = {"axis": 2, "batch_dims": int(batch > 1)}
    where = places.reshape(shape).transpose(1, 0, 2)
    found = node.call("take", flat, node.const(where if batch > 1 else where[0]), **dims)
    factors = weights.reshape(shape).transpose(1, 0, 2)[:, None]
    if (factors != 1).any():
        factor = node.const(factors, data.tensor_type.dtype)
        found = node.call("multiply", found, factor)
    total = node.call("sum", found, axis=(2,))
    return node.call("reshape", total, newshape=(batch, channels, *grid.shape[1:-1]))


@from_onnx("AffineGrid", since=20)
def affine_grid(node: OnnxNode) -> Expr:
    """Places of an image, each through the matrix of its sample."""
    theta, (batch, _, *sizes) = node.arg(0), node.ints(1, "the size")
    aligned = node.attr("align_corners", 0)
    axes = [np.linspace(-1, 1, n) if aligned else (2 * np.arange(n) + 1) / n - 1 for n in sizes]
    spread = np.meshgrid(*axes, indexing="ij")[::-1]
    points = np.stack([*spread, np.ones(sizes)], -1).reshape(1, -1, len(sizes) + 1)
    known = node.const(np.repeat(points, batch, 0), theta.tensor_type.dtype)
    moved = node.call("nn.batch_matmul", known, theta, transpose_b=True)
    return node.call("reshape", moved, newshape=(batch, *sizes, len(sizes)))


@from_onnx("Col2Im", since=18)
def col2im(node: OnnxNode) -> Expr:
    """Each element is the sum of those of the patches that hold it."""
    data = node.arg(0)
    image, block = node.ints(1, "the image's shape"), node.ints(2, "the block's shape")
    rank, kernel = len(image), math.prod(block)
    strides = node.attr("strides", None) or [1] * rank
    dilations = node.attr("dilations", None) or [1] * rank
    pads = node.attr("pads", None) or [0] * (2 * rank)
    batch, _, patches = node.shape(data)
    terms = np.arange(kernel * patches).reshape(kernel, patches)
    found = np.full((math.prod(image), kernel), kernel * patches)
    window = Window(*map(tuple, (block, strides, dilations, pads[:rank], pads[rank:])))
    count = math.prod(window.counts(image))
    if count != patches:
        raise node.error(f"{patches} patches, {count} fit in an image of {image}")
    elements, inside = window.elements(image)
    found[elements[inside], np.nonzero(inside)[1]] = terms.T[inside]
    rows = node.call("reshape", data, newshape=(-1, kernel * patches))
    sums = summed_rows(node, node.call("transpose", rows, axes=(1, 0)), found)
    return node.call(
        "reshape", node.call("transpose", sums, axes=(1, 0)), newshape=(batch, -1, *image)
    )
