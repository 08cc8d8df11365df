"""Resize and Upsample of the two spatial axes."""

from __future__ import annotations

import math

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def _target(node: OnnxNode, scales_input: int, sizes_input: int | None) -> tuple[int, int]:
    """(height, width) of the result."""
    shape = node.shape(node.arg(0))
    if len(shape) != 4:
        raise node.error(f"rank {len(shape)} is not supported; (N, C, H, W) is")
    axes = node.attr("axes", None)
    if sizes_input is not None and node.has_input(sizes_input):
        wanted = node.ints(sizes_input, "the sizes")
        if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise node.error("keep_aspect_ratio_policy must be 'stretch'")
    else:
        scales = [float(s) for s in node.require_known(scales_input, "the scales").reshape(-1)]
        chosen = range(len(shape)) if axes is None else [node.axis(a, 4) for a in axes]
        wanted = [math.floor(shape[a] * s) for a, s in zip(chosen, scales)]
    if axes is not None:
        full = list(shape)
        for axis, size in zip(axes, wanted):
            full[node.axis(axis, 4)] = size
        wanted = full
    if tuple(wanted[:2]) != shape[:2]:
        raise node.error(f"only height and width can be resized, not {shape} to {tuple(wanted)}")
    return wanted[2], wanted[3]


def _resize(
    node: OnnxNode, size: tuple[int, int], coordinates: str, rounding: str
) -> Expr:
    mode = node.attr("mode", "nearest")
    if mode not in _METHODS:
        raise node.error(f"mode {mode!r} is not one of {', '.join(_METHODS)}")
    if coordinates not in _COORDINATES:
        raise node.error(
            f"coordinate_transformation_mode {coordinates!r} is not one of {', '.join(_COORDINATES)}"
        )
    if node.attr("antialias", 0) or node.attr("exclude_outside", 0):
        raise node.error("antialias and exclude_outside are not supported")
    return node.call(
        "image.resize2d",
        node.arg(0),
        size=size,
        layout="NCHW",
        method=_METHODS[mode],
        coordinate_transformation_mode=coordinates,
        rounding_method=rounding if mode == "nearest" else "",
        cubic_alpha=node.attr("cubic_coeff_a", -0.75),
    )


@from_onnx("Upsample", since=7)
def upsample_attribute(node: OnnxNode) -> Expr:
    """Scales as attribute."""
    scales = np.asarray(node.attr("scales"), "float64")
    shape = node.shape(node.arg(0))
    if len(shape) != 4 or tuple(scales[:2]) != (1.0, 1.0):
        raise node.error(f"only height and width of (N, C, H, W) can be resized, scales {scales}")
    size = (math.floor(shape[2] * scales[2]), math.floor(shape[3] * scales[3]))
    return _resize(node, size, "asymmetric", "floor")


@from_onnx("Upsample", since=9)
def upsample(node: OnnxNode) -> Expr:
    """Scales as input."""
    return _resize(node, _target(node, 1, None), "asymmetric", "floor")


@from_onnx("Resize", since=10)
def resize_scales(node: OnnxNode) -> Expr:
    """Opset 10: scales only, asymmetric coordinates."""
    return _resize(node, _target(node, 1, None), "asymmetric", "floor")


@from_onnx("Resize", since=11)
def resize(node: OnnxNode) -> Expr:
    """Scales or sizes, with a coordinate transformation."""
    return _resize(
        node,
        _target(node, 2, 3),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
    )
