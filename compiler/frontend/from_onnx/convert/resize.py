"""Resize and Upsample: ``image.resize2d`` where it says it all, else a matrix per axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.frontend.from_onnx.convert.interpolation import (
    Axis,
    Filter,
    read_filter,
    resize_by_axes,
)
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

# What image.resize2d knows; its transformation is that of the sizes alone.
_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_NCHW = 4


def _by_scales(node: OnnxNode, scales: Sequence[float]) -> list[Axis]:
    """Axes from factors; the new size is rounded down."""
    shape = node.shape(node.arg(0))
    axes = _chosen_axes(node, len(shape))
    if len(scales) != len(axes):
        raise node.error(f"{len(scales)} scales for {len(axes)} axes")
    if any(not 0 < s < math.inf for s in scales):
        raise node.error(f"scales {list(scales)} must be positive")
    return [
        Axis(axis, shape[axis], math.floor(shape[axis] * s), s) for axis, s in zip(axes, scales)
    ]


def _by_sizes(node: OnnxNode, sizes: Sequence[int]) -> list[Axis]:
    """Axes from sizes, which ``keep_aspect_ratio_policy`` may only bound."""
    shape = node.shape(node.arg(0))
    axes = _chosen_axes(node, len(shape))
    if len(sizes) != len(axes):
        raise node.error(f"{len(sizes)} sizes for {len(axes)} axes")
    if any(s < 1 for s in sizes) or any(shape[a] < 1 for a in axes):
        raise node.error(f"sizes {list(sizes)} must be positive")
    scales = [size / shape[axis] for axis, size in zip(axes, sizes)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [Axis(a, shape[a], size, s) for a, size, s in zip(axes, sizes, scales)]
    if policy not in ("not_larger", "not_smaller"):
        raise node.error(f"keep_aspect_ratio_policy {policy!r} is unknown")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [Axis(a, shape[a], math.floor(scale * shape[a] + 0.5), scale) for a in axes]


def _chosen_axes(node: OnnxNode, rank: int) -> list[int]:
    axes = node.attr("axes", None)
    return list(range(rank)) if axes is None else [node.axis(a, rank) for a in axes]


def _with_region(node: OnnxNode, axes: list[Axis]) -> list[Axis]:
    """Start and end of the cropped region, as fractions of each axis."""
    region = [float(v) for v in node.require_known(1, "the region").reshape(-1)]
    if len(region) != 2 * len(axes):
        raise node.error(f"a region of {len(region)} values for {len(axes)} axes")
    ends = region[len(axes) :]
    return [
        Axis(a.axis, a.size, a.new_size, a.scale, start, end)
        for a, start, end in zip(axes, region, ends)
    ]


def _resize(node: OnnxNode, axes: list[Axis], how: Filter) -> Expr:
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
    exact = all(a.scale * a.size == a.new_size for a in axes)
    return (
        node.rank(node.arg(0)) == _NCHW
        and all(a.is_identity for a in axes if a.axis < 2)
        and exact
        and how.coordinates in _COORDINATES
        and not how.antialias
        and not how.exclude_outside
    )


def _asymmetric(node: OnnxNode) -> Filter:
    """Upsample, and Resize of opset 10: plain division of coordinates, rounded down."""
    return Filter(node.attr("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)


@from_onnx("Upsample", since=7)
def upsample_attribute(node: OnnxNode) -> Expr:
    """Scales as attribute."""
    return _resize(node, _by_scales(node, node.attr("scales")), _asymmetric(node))


@from_onnx("Upsample", since=9)
@from_onnx("Resize", since=10)
def resize_scales(node: OnnxNode) -> Expr:
    """Scales as input 1."""
    scales = [float(s) for s in node.require_known(1, "the scales").reshape(-1)]
    return _resize(node, _by_scales(node, scales), _asymmetric(node))


@from_onnx("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """Scales or sizes, with a coordinate transformation."""
    how = read_filter(node)
    # An empty scales tensor stands for "not given" before opset 13.
    if node.has_input(3):
        axes = _by_sizes(node, node.ints(3, "the sizes"))
    else:
        scales = [float(s) for s in node.require_known(2, "the scales").reshape(-1)]
        axes = _by_scales(node, scales)
    if how.coordinates == "tf_crop_and_resize":
        axes = _with_region(node, axes)
    return _resize(node, axes, how)
