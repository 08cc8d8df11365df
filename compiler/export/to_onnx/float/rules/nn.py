"""Convolutions, products, activations and padding."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_float


def require_float(step: Step, e: Emitter) -> None:
    """Integer products have no plain ONNX form that onnxruntime computes exactly and fast.

    Raises:
        OnnxExportError: the operands are integers, or the result is of another dtype.
    """
    if not all(is_float(a.type.dtype) for a in step.args[:2]):
        raise e.refuse(
            step,
            f"its operands are {step.args[0].type.dtype}",
            "a module on integers is exported with --format onnx or qdq (to_integer_onnx, …)",
        )
    given = step.args[0].type.dtype
    wanted = step.result.type.dtype
    if given != wanted:
        raise e.refuse(step, f"out_dtype {wanted} of {given} operands", "cast the operands first")


def require_layout(step: Step, e: Emitter, layout: str, kernel: str | None = None) -> None:
    """Only ONNX's own layouts.

    Raises:
        OnnxExportError: the layout is another.
    """
    if layout != "NCHW" or kernel not in (None, "OIHW", "IOHW"):
        raise e.refuse(step, f"layout {layout} {kernel or ''}", "convert the module to NCHW first")


@FToOnnx.register("nn.conv2d")
def conv2d(step: Step, e: Emitter) -> str:
    """Conv."""
    require_float(step, e)
    return conv_node(step, e, e.args(step))


def conv_node(
    step: Step, e: Emitter, inputs: list[str], op_type: str = "Conv", **changed: object
) -> str:
    """A node with the attributes of a convolution, but for those that are ``changed``."""
    attrs = step.attrs
    require_layout(step, e, attrs.data_layout, attrs.kernel_layout)
    window = window_attributes(attrs, step.args[1].type.concrete_shape[2:])
    return e.node(op_type, inputs, group=attrs.groups, **{**window, **changed})


@FToOnnx.register("nn.conv2d_transpose")
def conv2d_transpose(step: Step, e: Emitter) -> str:
    """ConvTranspose."""
    require_float(step, e)
    padding = list(step.attrs.output_padding)
    return conv_node(step, e, e.args(step), "ConvTranspose", output_padding=padding)


def transposed(value: Value, e: Emitter) -> str:
    """A tensor with its last two axes exchanged; a constant is exchanged here and now, if that is
    free or nobody else does it: a session lets go of what it has packed, we could not."""
    if value.data is not None:
        exchanged = np.swapaxes(value.data, -1, -2)
        if exchanged.flags.c_contiguous or not e.folds:
            return e.writer.constant(exchanged)
    rank = len(value.type.shape)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return e.node("Transpose", [e.name(value)], perm=perm)


@FToOnnx.register("nn.dense")
def dense(step: Step, e: Emitter) -> str:
    """Gemm for two axes, MatMul with the transposed weight for more."""
    require_float(step, e)
    if len(step.args[0].type.shape) == 2:
        return e.node("Gemm", e.args(step), transB=1)
    return e.node("MatMul", [e.name(step.args[0]), transposed(step.args[1], e)])


@FToOnnx.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, e: Emitter) -> str:
    """MatMul behind the transpositions its attributes ask for."""
    require_float(step, e)
    lhs, rhs = step.args
    if step.attrs.transpose_a:
        left = transposed(lhs, e)
    else:
        left = e.name(lhs)
    if step.attrs.transpose_b:
        right = transposed(rhs, e)
    else:
        right = e.name(rhs)
    return e.node("MatMul", [left, right])


@FToOnnx.register("nn.leaky_relu")
def leaky_relu(step: Step, e: Emitter) -> str:
    """LeakyRelu."""
    return e.node("LeakyRelu", e.args(step), alpha=float(step.attrs.alpha))


@FToOnnx.register("nn.prelu")
def prelu(step: Step, e: Emitter) -> str:
    """PRelu with the slopes along one axis."""
    data, alpha = step.args
    slopes = e.along(e.name(alpha), step.attrs.axis, len(data.type.shape))
    return e.node("PRelu", [e.name(data), slopes])


@FToOnnx.register("nn.softmax", "nn.log_softmax")
def softmax(step: Step, e: Emitter) -> str:
    """Softmax or LogSoftmax."""
    if step.name == "nn.softmax":
        op_type = "Softmax"
    else:
        op_type = "LogSoftmax"
    return e.node(op_type, e.args(step), axis=step.attrs.axis)


@FToOnnx.register("nn.pad")
def pad(step: Step, e: Emitter) -> str:
    """Pad with a constant, the edge or a reflection."""
    width = step.attrs.pad_width
    pads = e.ints([low for low, _ in width] + [high for _, high in width])
    mode = step.attrs.pad_mode
    inputs = [e.name(step.args[0]), pads]
    if mode == "constant":
        inputs.append(e.name(step.args[1]))
    return e.node("Pad", inputs, mode=mode)
