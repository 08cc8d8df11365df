"""Resize and Upsample: ``image.resize2d`` where one operator says it all, else a matrix per axis.

The general form takes any rank, any axes, every coordinate transformation and filter of ONNX: along
each axis the result is a constant matrix times the data. Nearest neighbours become ``take``.
Source: the operator's specification and reference implementation, ONNX Resize since 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.image.resampling import COORDINATES, nearest

_COORDINATES = (*COORDINATES, "half_pixel_symmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# The matrix of one axis is a constant of the module.
MAX_MATRIX_ELEMENTS = 1 << 24

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized: sizes in elements, scale = output / input before rounding."""

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
    found = Filter(
        node.attr("mode", "nearest"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        node.attr("extrapolation_value", 0.0),
    )
    for value, legal in (
        (found.mode, ("nearest", "linear", "cubic")),
        (found.coordinates, _COORDINATES),
        (found.rounding, NEAREST),
    ):
        if value not in legal:
            raise node.error(f"{value!r} is not one of {', '.join(legal)}")
    return found


def resize_by_axes(node: OnnxNode, axes: Sequence[Axis], how: Filter) -> Expr:
    """The data resized along one axis after the other."""
    data = node.arg(0)
    outside: dict[int, NDArray[np.bool_]] = {}
    for axis in axes:
        if axis.is_identity:
            continue
        if axis.size * axis.new_size > MAX_MATRIX_ELEMENTS:
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
        return x * (axis.size - 1) / (length - 1) if length != 1 else np.zeros_like(x)
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
        taper = _linear(distance) if how.mode == "linear" else cubic(distance, how.cubic_alpha)
        if how.antialias:
            taper = taper / taper.sum()
        if how.exclude_outside:
            taper = np.where((taps >= 0) & (taps < axis.size), taper, 0.0)
            taper = taper / taper.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.size - 1), taper)
    return matrix


def _linear(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(1 - distance, 0.0, 1.0)


def cubic(distance: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Keys' kernel with parameter ``alpha``: the weight of an element at a distance."""
    d = distance
    near = ((alpha + 2) * d - (alpha + 3)) * d * d + 1
    far = ((alpha * d - 5 * alpha) * d + 8 * alpha) * d - 4 * alpha
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
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
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [Axis(*axis, new, scale) for axis, new, scale in zip(axes, sizes, scales)]
    if policy not in ("not_larger", "not_smaller"):
        raise node.error(f"keep_aspect_ratio_policy {policy!r} is unknown")
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
    region = [float(v) for v in node.require_known(1, "the region").reshape(-1)]
    if len(region) != 2 * len(axes):
        raise node.error(f"a region of {len(region)} values for {len(axes)} axes")
    ends = region[len(axes) :]
    return [replace(a, start=start, end=end) for a, start, end in zip(axes, region, ends)]


def _resize(node: OnnxNode, axes: list[Axis], how: Filter) -> Expr:
    if all(axis.is_identity for axis in axes) and how.coordinates != "tf_half_pixel_for_nn":
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
        method=_METHODS[how.mode],
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
    scales = node.attr("scales") if node.opset < 9 else _scales(node, 1)
    how = Filter(node.attr("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resize(node, _by_scales(node, scales), how)


def _scales(node: OnnxNode, index: int) -> list[float]:
    return [float(s) for s in node.require_known(index, "the scales").reshape(-1)]


@from_onnx("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """Scales or sizes, with a coordinate transformation."""
    how = read_filter(node)
    # An empty scales tensor stands for "not given" before opset 13.
    if node.has_input(3):
        axes = _by_sizes(node, node.ints(3, "the sizes"))
    else:
        axes = _by_scales(node, _scales(node, 2))
    if how.coordinates == "tf_crop_and_resize":
        axes = _with_region(node, axes)
    return _resize(node, axes, how)
