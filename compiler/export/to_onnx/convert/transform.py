"""Shape and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from compiler.export.to_onnx.convert.nn import require_layout
from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.ir.dataflow import Step
from compiler.ir.ty import is_float
from compiler.ops.image.resampling import nearest


@FToOnnx.register("reshape", "nn.batch_flatten", "squeeze", "expand_dims", "reshape_like")
def reshape(step: Step, e: Emitter) -> str:
    """Reshape to the static result shape; one that changes nothing disappears."""
    data, shape = step.args[0], step.result.type.concrete_shape
    if data.type.concrete_shape == shape:
        return e.name(data)
    # 0 would mean "copy" to ONNX, so an empty tensor needs allowzero.
    allowzero = 1 if 0 in shape else None
    return e.node("Reshape", [e.name(data), e.ints(shape)], allowzero=allowzero)


@FToOnnx.register("broadcast_to", "broadcast_to_like")
def broadcast_to(step: Step, e: Emitter) -> str:
    """Expand."""
    return e.node("Expand", [e.name(step.args[0]), e.ints(step.result.type.concrete_shape)])


@FToOnnx.register("transpose")
def transpose(step: Step, e: Emitter) -> str:
    """Transpose; no axes means reversed."""
    rank = len(step.args[0].type.shape)
    axes = step.attrs.axes
    perm = [a % rank for a in axes] if axes else list(range(rank))[::-1]
    return e.node("Transpose", e.args(step), perm=perm)


@FToOnnx.register("concatenate")
def concatenate(step: Step, e: Emitter) -> str:
    """Concat."""
    return e.node("Concat", e.args(step), axis=step.attrs.axis)


@FToOnnx.register("stack")
def stack(step: Step, e: Emitter) -> str:
    """Concat of the fields with one more axis."""
    axis = step.attrs.axis % len(step.result.type.shape)
    fields = [e.node("Unsqueeze", [name, e.ints([axis])]) for name in e.args(step)]
    return e.node("Concat", fields, axis=axis)


@FToOnnx.register("split")
def split(step: Step, e: Emitter) -> list[str]:
    """Split into the sizes of the results."""
    axis = step.attrs.axis % len(step.args[0].type.shape)
    sizes = [r.type.concrete_shape[axis] for r in step.results]
    inputs = [e.name(step.args[0]), e.ints(sizes)]
    return e.writer.nodes("Split", inputs, len(sizes), axis=axis)


@FToOnnx.register("tile")
def tile(step: Step, e: Emitter) -> str:
    """Tile; missing leading repeats are 1."""
    data = step.args[0]
    reps = list(step.attrs.reps)
    name, rank = e.name(data), len(data.type.shape)
    if len(reps) > rank:
        shape = [1] * (len(reps) - rank) + list(data.type.concrete_shape)
        name = e.node("Reshape", [name, e.ints(shape)])
    reps = [1] * (rank - len(reps)) + reps
    return e.node("Tile", [name, e.ints(reps)])


@FToOnnx.register("repeat")
def repeat(step: Step, e: Emitter) -> str:
    """Gather with every index repeated; without an axis, of the flat tensor."""
    data = step.args[0]
    name, shape = e.name(data), data.type.concrete_shape
    if step.attrs.axis is None:
        name, shape = e.node("Reshape", [name, e.ints([-1])]), (data.type.num_elements,)
    axis = (step.attrs.axis or 0) % len(shape)
    indices = np.repeat(np.arange(shape[axis]), step.attrs.repeats)
    return e.node("Gather", [name, e.ints(list(indices))], axis=axis)


@FToOnnx.register("nn.mirror_pad")
def mirror_pad(step: Step, e: Emitter) -> str:
    """One Gather per padded axis, with the indices reflected at its ends."""
    name = e.name(step.args[0])
    mode: Literal["reflect", "symmetric"] = (
        "reflect" if step.attrs.mode == "REFLECT" else "symmetric"
    )
    for axis, (before, after) in enumerate(step.attrs.pad_width):
        if before or after:
            size = step.args[0].type.concrete_shape[axis]
            indices = np.pad(np.arange(size), (before, after), mode)
            name = e.node("Gather", [name, e.ints(list(indices))], axis=axis)
    return name


@FToOnnx.register("nn.depth_to_space")
def depth_to_space(step: Step, e: Emitter) -> str:
    """DepthToSpace; onnxruntime has it for few integers, which are reshaped and transposed."""
    data, block, mode = step.args[0], step.attrs.block_size, step.attrs.mode
    require_layout(step, e, step.attrs.layout)
    if is_float(data.type.dtype):
        return e.node("DepthToSpace", e.args(step), blocksize=block, mode=mode)
    n, c, h, w = data.type.concrete_shape
    c //= block * block
    first = (n, block, block, c, h, w) if mode == "DCR" else (n, c, block, block, h, w)
    axes = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return _turned(step, e, first, axes)


@FToOnnx.register("nn.space_to_depth")
def space_to_depth(step: Step, e: Emitter) -> str:
    """SpaceToDepth, integers as above."""
    data, block = step.args[0], step.attrs.block_size
    require_layout(step, e, step.attrs.layout)
    if is_float(data.type.dtype) and step.attrs.mode == "DCR":
        return e.node("SpaceToDepth", e.args(step), blocksize=block)
    n, c, h, w = data.type.concrete_shape
    axes = (0, 3, 5, 1, 2, 4) if step.attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return _turned(step, e, (n, c, h // block, block, w // block, block), axes)


def _turned(step: Step, e: Emitter, first: Sequence[int], axes: Sequence[int]) -> str:
    """A shape, an order of its axes, and the shape of the result."""
    apart = e.node("Reshape", [e.name(step.args[0]), e.ints(first)])
    turned = e.node("Transpose", [apart], perm=list(axes))
    return e.node("Reshape", [turned, e.ints(step.results[0].type.concrete_shape)])


@FToOnnx.register("image.resize2d")
def resize2d(step: Step, e: Emitter) -> str:
    """By index, or Resize to the static result size."""
    attrs = step.attrs
    coordinates = attrs.coordinate_transformation_mode
    if attrs.method == "nearest_neighbor":
        return _picked(step, e, coordinates, attrs.rounding_method)
    return _mixed(step, e, coordinates, attrs.cubic_alpha)


@FToOnnx.register("nn.upsampling")
def upsampling(step: Step, e: Emitter) -> str:
    """By index, or Resize by whole factors."""
    aligned = step.attrs.align_corners
    coordinates = "align_corners" if aligned else "asymmetric"
    if step.attrs.method == "nearest_neighbor":
        return _picked(step, e, coordinates, "round" if aligned else "floor")
    return _mixed(step, e, coordinates, -0.5)


def _picked(step: Step, e: Emitter, coordinates: str, rounding: str) -> str:
    """One Gather per axis: Resize computes coordinates in float32, and takes a neighbour where the
    exact one is whole or a half."""
    data = step.args[0]
    name, layout = e.name(data), step.attrs.layout
    for axis in (layout.index("H"), layout.index("W")):
        size, out = (value.type.concrete_shape[axis] for value in (data, step.result))
        places = nearest(size, out, coordinates, rounding)
        if list(places) != list(range(size)):
            name = e.node("Gather", [name, e.ints(list(places))], axis=axis)
    return name


def _mixed(step: Step, e: Emitter, coordinates: str, alpha: float) -> str:
    """Resize with weights."""
    if step.attrs.layout != "NCHW":
        raise e.refuse(step, f"layout {step.attrs.layout}")
    is_cubic = step.attrs.method in ("cubic", "bicubic")
    return e.node(
        "Resize",
        [e.name(step.args[0]), "", "", e.ints(step.result.type.concrete_shape)],
        mode="cubic" if is_cubic else "linear",
        coordinate_transformation_mode=coordinates,
        cubic_coeff_a=float(alpha) if is_cubic else None,
    )
