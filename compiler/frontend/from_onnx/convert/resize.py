"""Resize and Upsample: ``image.resize2d`` where one operator says it all, else a matrix per axis.

The general form takes any rank, any axes, every coordinate transformation and filter of ONNX: along
each axis the result is a constant matrix times the data. Nearest neighbours become ``take``.
Source: the operator's specification and reference implementation, ONNX Resize since 11.

GridSample, AffineGrid and Col2Im: samples at places between the elements, and patches that are put
together again. The places are constants of the model: what is read, and with which weight, is known
at the import. Source: the operators' specifications, since 16, 20 and 18.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.indexing import summed_rows
from compiler.frontend.from_onnx.convert.window import Window, pads_of, per_axis
from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.image.resampling import COORDINATES, cubic, nearest

_COORDINATES = (*COORDINATES, "half_pixel_symmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize")
_MODES = ("nearest", "linear", "cubic")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """Resize of one axis: sizes in elements, scale = output / input before rounding."""

    axis: int
    size: int
    new_size: int
    scale: Fraction
    start: float = 0.0
    end: float = 1.0

    @property
    def is_exact(self) -> bool:
        """True when the new size is not rounded."""
        return self.scale * self.size == self.new_size

    @property
    def is_identity(self) -> bool:
        """True when nothing happens along the axis."""
        return self.size == self.new_size and self.is_exact and (self.start, self.end) == (0, 1)


@dataclass(frozen=True, slots=True)
class Filter:
    """The node's attributes."""

    mode: str
    coordinates: str
    rounding: str
    cubic_alpha: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float


def read_filter(node: OnnxNode) -> Filter:
    """Attributes of a Resize.

    Raises:
        OnnxImportError: a mode, transformation or rounding that ONNX does not have.
    """
    return Filter(
        node.choice("mode", _MODES),
        node.choice("coordinate_transformation_mode", _COORDINATES),
        node.choice("nearest_mode", NEAREST),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        node.attr("extrapolation_value", 0.0),
    )


def resize_by_axes(node: OnnxNode, axes: Sequence[Axis], how: Filter) -> Expr:
    """The data resized along one axis after the other."""
    data = node.arg(0)
    outside: dict[int, NDArray[np.bool_]] = {}
    for axis in axes:
        if axis.is_identity:
            continue
        if axis.size * axis.new_size > MAX_CONSTANT:
            raise node.error(f"resizing {axis.size} elements to {axis.new_size} is too large")
        x = source_coordinates(axis, how.coordinates)
        if how.coordinates == "tf_crop_and_resize":
            outside[axis.axis] = (x < 0) | (x > axis.size - 1)
        if how.mode == "nearest":
            indices = nearest_indices(x, axis.size, how.rounding)
            if axis.is_exact and how.coordinates != "tf_crop_and_resize":
                indices = nearest(axis.size, axis.new_size, how.coordinates, how.rounding)
            data = node.call("take", data, node.const(indices), axis=axis.axis)
        else:
            data = _times(node, data, axis.axis, weights(x, axis, how))
    return _extrapolate(node, data, outside, how.extrapolation)


def _times(node: OnnxNode, data: Expr, axis: int, matrix: Matrix) -> Expr:
    """``matrix`` (new size, size) applied along ``axis``."""
    dtype = data.tensor_type.dtype
    if not dtype.startswith("float"):
        raise node.error(f"interpolation of {dtype} is not supported; floats are")
    last = node.rank(data) - 1
    turned = node.moved(data, axis, last)
    weight = node.const(matrix.astype(dtype))
    flat = node.call("reshape", turned, newshape=(-1, matrix.shape[1]))
    product = node.call("nn.dense", flat, weight, units=matrix.shape[0])
    shape = (*node.shape(turned)[:-1], matrix.shape[0])
    return node.moved(node.call("reshape", product, newshape=shape), last, axis)


def _extrapolate(
    node: OnnxNode, data: Expr, outside: dict[int, NDArray[np.bool_]], value: float
) -> Expr:
    """``value`` wherever a coordinate lay outside the data."""
    if not any(mask.any() for mask in outside.values()):
        return data
    shape = node.shape(data)
    mask: NDArray[np.bool_] = np.zeros((), bool)
    for axis, hit in outside.items():
        mask = mask | hit.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return node.call("where", node.const(mask), node.scalar_like(value, data), data)


def source_coordinates(axis: Axis, mode: str) -> NDArray[np.float64]:
    """Coordinate in the data of every element of the result; behind a scale in float32, as
    runtimes have it: a coordinate on the border of two elements falls to the same one."""
    x = np.arange(axis.new_size, dtype=np.float64)
    length = float(axis.scale * axis.size)
    if mode == "align_corners":
        if length != 1:
            return x * (axis.size - 1) / (length - 1)
        return np.zeros_like(x)
    half = np.float32(0.5)
    scaled = (x.astype(np.float32) + (0 if mode == "asymmetric" else half)) / np.float32(axis.scale)
    if mode in ("asymmetric", "tf_half_pixel_for_nn"):
        return scaled.astype(np.float64)
    if mode == "tf_crop_and_resize":
        span = (axis.end - axis.start) * (axis.size - 1)
        if length == 1:
            return np.full_like(x, span / 2 + axis.start * (axis.size - 1))
        return x * span / (length - 1) + axis.start * (axis.size - 1)
    centre = (scaled - half).astype(np.float64)
    if mode == "pytorch_half_pixel" and axis.new_size <= 1:
        return np.zeros_like(x)
    if mode == "half_pixel_symmetric":
        return centre + axis.size / 2 * (1 - axis.new_size / length)
    return centre


def nearest_indices(x: NDArray[np.float64], size: int, rounding: str) -> NDArray[np.int64]:
    """Index of the element nearest to each coordinate, kept inside the data."""
    rounded: Any = {
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
    }[rounding]
    return np.asarray(np.clip(rounded, 0, size - 1), np.int64)


def weights(x: NDArray[np.float64], axis: Axis, how: Filter) -> Matrix:
    """Matrix (new size, size) of the interpolation along one axis."""
    stretch = min(float(axis.scale), 1.0) if how.antialias else 1.0
    radius = 1 if how.mode == "linear" else 2
    # Taps lie at -reach+1 … reach around the element at or before the coordinate.
    reach = 1 - (math.floor(-radius / stretch) + 1)
    matrix = np.zeros((axis.new_size, axis.size))
    for row, centre in enumerate(x):
        # A coordinate on an element counts as the end of the interval before it.
        first = math.ceil(centre) - 1
        taps = np.arange(first - reach + 1, first + reach + 1)
        distance = np.abs(taps - centre) * stretch
        linear = how.mode == "linear"
        if linear:
            taper = np.clip(1 - distance, 0, 1)
        else:
            taper = cubic(distance, how.cubic_alpha)
        if how.antialias:
            taper = taper / taper.sum()
        if how.exclude_outside:
            taper = np.where((taps >= 0) & (taps < axis.size), taper, 0.0)
            taper = taper / taper.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.size - 1), taper)
    return matrix


_NCHW = 4


def _by_scales(node: OnnxNode, scales: Sequence[float]) -> list[Axis]:
    """Axes from factors; the new size is rounded down, of a product in float32."""
    axes = _chosen_axes(node, scales, "scales")
    if any(not 0 < s < math.inf for s in scales):
        raise node.error(f"scales {list(scales)} must be positive")
    return [
        Axis(axis, size, math.floor(np.float32(size) * np.float32(s)), Fraction(s))
        for (axis, size), s in zip(axes, scales)
    ]


def _by_sizes(node: OnnxNode, sizes: Sequence[int]) -> list[Axis]:
    """Axes from sizes, which ``keep_aspect_ratio_policy`` may only bound."""
    axes = _chosen_axes(node, sizes, "sizes")
    if any(s < 1 for s in sizes) or any(size < 1 for _, size in axes):
        raise node.error(f"sizes {list(sizes)} must be positive")
    scales = [Fraction(new, size) for (_, size), new in zip(axes, sizes)]
    policy = node.choice("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"))
    if policy == "stretch":
        return [Axis(*axis, new, scale) for axis, new, scale in zip(axes, sizes, scales)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [Axis(a, size, math.floor(scale * size + Fraction(1, 2)), scale) for a, size in axes]


def _chosen_axes(node: OnnxNode, given: Sequence[float], what: str) -> list[tuple[int, int]]:
    """The axes that are resized, and their sizes."""
    shape = node.shape(node.arg(0))
    chosen = node.attr("axes", None)
    axes = range(len(shape)) if chosen is None else [node.axis(a, len(shape)) for a in chosen]
    if len(given) != len(axes):
        raise node.error(f"{len(given)} {what} for {len(axes)} axes")
    return [(axis, shape[axis]) for axis in axes]


def _with_region(node: OnnxNode, axes: list[Axis]) -> list[Axis]:
    """Start and end of the cropped region, as fractions of each axis."""
    region = node.floats(1, "the region")
    if len(region) != 2 * len(axes):
        raise node.error(f"a region of {len(region)} values for {len(axes)} axes")
    ends = region[len(axes) :]
    return [replace(a, start=start, end=end) for a, start, end in zip(axes, region, ends)]


def _resize(node: OnnxNode, axes: list[Axis], how: Filter) -> Expr:
    if all(axis.is_identity for axis in axes):
        return node.arg(0)
    if not _is_resize2d(node, axes, how):
        return resize_by_axes(node, axes, how)
    sizes = list(node.shape(node.arg(0)))
    for axis in axes:
        sizes[axis.axis] = axis.new_size
    return node.call(
        "image.resize2d",
        node.arg(0),
        size=(sizes[2], sizes[3]),
        layout="NCHW",
        method="nearest_neighbor" if how.mode == "nearest" else how.mode,
        coordinate_transformation_mode=how.coordinates,
        rounding_method=how.rounding if how.mode == "nearest" else "",
        cubic_alpha=how.cubic_alpha,
    )


def _is_resize2d(node: OnnxNode, axes: Sequence[Axis], how: Filter) -> bool:
    return (
        node.rank(node.arg(0)) == _NCHW
        and all(a.is_identity for a in axes if a.axis < 2)
        and all(a.is_exact for a in axes)
        and how.coordinates in COORDINATES
        and not how.antialias
        and not how.exclude_outside
    )


@from_onnx("Upsample", since=7)
@from_onnx("Upsample", since=9)
@from_onnx("Resize", since=10)
def resize_asymmetric(node: OnnxNode) -> Expr:
    """Plain division of coordinates, rounded down; scales are an attribute before opset 9."""
    if node.opset < 9:
        scales = node.attr("scales")
    else:
        scales = node.floats(1, "the scales")
    how = Filter(node.choice("mode", _MODES), "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resize(node, _by_scales(node, scales), how)


@from_onnx("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """Scales or sizes, with a coordinate transformation."""
    how = read_filter(node)
    # An empty scales tensor stands for "not given" before opset 13.
    if node.has_input(3):
        axes = _by_sizes(node, node.ints(3, "the sizes"))
    else:
        axes = _by_scales(node, node.floats(2, "the scales"))
    if how.coordinates == "tf_crop_and_resize":
        axes = _with_region(node, axes)
    return _resize(node, axes, how)


# ---- sampling ------------------------------------------------------------------------------------


Floats = NDArray[np.float64]


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
    if padding == "reflection":
        return np.where(outside, _reflected(at, size, aligned), at)
    return at


def _taps(at: Floats, mode: str) -> tuple[Floats, Floats]:
    """Elements around each place, and their weights; both (taps, places)."""
    if mode == "nearest":
        return np.rint(at)[None], np.ones((1, at.size))
    first = np.floor(at)
    part = at - np.floor(at)
    if mode == "linear":
        return np.stack([first, first + 1]), np.stack([1 - part, part])
    places = np.stack([first + k for k in (-1, 0, 1, 2)])
    return places, cubic(np.stack([part + 1, part, 1 - part, 2 - part]), -0.75)


@from_onnx("GridSample", since=16)
def grid_sample(node: OnnxNode) -> Expr:
    """Sums of the elements around constant places, each times its weight."""
    data = node.arg(0)
    grid = node.require_known(1, "the grid")
    batch, channels, *sizes = node.shape(data)
    mode = node.choice("mode", ("linear", "cubic", "nearest", "bilinear", "bicubic"))
    mode = mode.removeprefix("bi")
    padding = node.choice("padding_mode", ("zeros", "border", "reflection"))
    aligned = bool(node.attr("align_corners", 0))
    places = np.zeros((1, grid[..., 0].size), np.int64)
    weights = np.ones((1, grid[..., 0].size))
    if places.size * 4 ** len(sizes) > MAX_CONSTANT:
        raise node.error(f"a grid of {places.size} places is too large")
    for axis, size in enumerate(sizes):
        at = grid[..., len(sizes) - 1 - axis].reshape(-1)
        # In the dtype of the grid, as onnxruntime has it: places may lie between two elements.
        if aligned:
            at = (at + 1) / 2 * (size - 1)
        else:
            at = ((at + 1) * size - 1) / 2
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


@from_onnx("Col2Im", since=18)
def col2im(node: OnnxNode) -> Expr:
    """Each element is the sum of those of the patches that hold it."""
    data = node.arg(0)
    image = node.ints(1, "the image's shape")
    block = node.ints(2, "the block's shape")
    rank = len(image)
    kernel = math.prod(block)
    strides, dilations = (per_axis(node, name, rank) for name in ("strides", "dilations"))
    batch, _, patches = node.shape(data)
    terms = np.arange(kernel * patches).reshape(kernel, patches)
    found = np.full((math.prod(image), kernel), kernel * patches)
    window = Window(tuple(block), strides, dilations, *pads_of(node, rank))
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
