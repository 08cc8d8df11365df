"""Shape and layout."""

from __future__ import annotations

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.float.rules.nn import require_layout
from compiler.ir.dataflow import Step
from compiler.ir.ty import is_float


@FToOnnx.register("reshape")
def reshape(step: Step, e: Emitter) -> str:
    """Reshape to the static result shape; one that changes nothing disappears."""
    data = step.args[0]
    shape = step.result.type.concrete_shape
    if data.type.concrete_shape == shape:
        return e.name(data)
    # 0 would mean "copy" to ONNX, so an empty tensor needs allowzero.
    allowzero = 1 if 0 in shape else None
    return e.node("Reshape", [e.name(data), e.ints(shape)], allowzero=allowzero)


@FToOnnx.register("broadcast_to")
def broadcast_to(step: Step, e: Emitter) -> str:
    """Expand."""
    return e.node("Expand", [e.name(step.args[0]), e.ints(step.result.type.concrete_shape)])


@FToOnnx.register("transpose")
def transpose(step: Step, e: Emitter) -> str:
    """Transpose; no axes means reversed."""
    rank = len(step.args[0].type.shape)
    axes = step.attrs.axes
    if axes:
        perm = [a % rank for a in axes]
    else:
        perm = list(range(rank))[::-1]
    return e.node("Transpose", e.args(step), perm=perm)


@FToOnnx.register("concatenate")
def concatenate(step: Step, e: Emitter) -> str:
    """Concat."""
    return e.node("Concat", e.args(step), axis=step.attrs.axis)


@FToOnnx.register("split")
def split(step: Step, e: Emitter) -> list[str]:
    """Split into the sizes of the results."""
    axis = step.attrs.axis % len(step.args[0].type.shape)
    sizes = [r.type.concrete_shape[axis] for r in step.results]
    inputs = [e.name(step.args[0]), e.ints(sizes)]
    return e.writer.nodes("Split", inputs, len(sizes), axis=axis)


@FToOnnx.register("nn.depth_to_space")
def depth_to_space(step: Step, e: Emitter) -> str | None:
    """DepthToSpace; onnxruntime has it for few integers."""
    attrs = step.attrs
    if attrs.layout != "NCHW" or not is_float(step.result.type.dtype):
        return None
    return e.node("DepthToSpace", e.args(step), blocksize=attrs.block_size, mode=attrs.mode)


@FToOnnx.register("nn.space_to_depth")
def space_to_depth(step: Step, e: Emitter) -> str | None:
    """SpaceToDepth, of one mode."""
    attrs = step.attrs
    if attrs.layout != "NCHW" or attrs.mode != "DCR" or not is_float(step.result.type.dtype):
        return None
    return e.node("SpaceToDepth", e.args(step), blocksize=attrs.block_size)


@FToOnnx.register("image.resize2d")
def resize2d(step: Step, e: Emitter) -> str | None:
    """Resize with weights. Nearest neighbours are taken by number: Resize computes coordinates in
    float32, and takes a neighbour where the exact one is whole or a half."""
    attrs = step.attrs
    if attrs.method == "nearest_neighbor":
        return None
    require_layout(step, e, attrs.layout)
    is_cubic = attrs.method in ("cubic", "bicubic")
    return e.node(
        "Resize",
        [e.name(step.args[0]), "", "", e.ints(step.result.type.concrete_shape)],
        mode="cubic" if is_cubic else "linear",
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        cubic_coeff_a=float(attrs.cubic_alpha) if is_cubic else None,
    )
