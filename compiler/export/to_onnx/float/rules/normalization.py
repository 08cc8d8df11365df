"""Normalizations; a norm that ONNX lacks becomes several nodes."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.ir.dataflow import Step, Value


def _affine(step: Step, e: Emitter, size: int) -> tuple[str, str]:
    """gamma and beta of a normalization, ones and zeros where its flags leave them out."""
    dtype = step.args[0].type.dtype
    gamma = e.name(step.args[1]) if step.attrs.scale else e.writer.constant(np.ones(size, dtype))
    beta = e.name(step.args[2]) if step.attrs.center else e.writer.constant(np.zeros(size, dtype))
    return gamma, beta


@FToOnnx.register("nn.batch_norm")
def batch_norm(step: Step, e: Emitter) -> list[str]:
    """BatchNormalization over axis 1; the statistics pass through."""
    data = step.args[0]
    rank = len(data.type.shape)
    if rank < 2:
        raise e.refuse(step, f"data of rank {rank}")
    axis = step.attrs.axis % rank
    gamma, beta = _affine(step, e, data.type.concrete_shape[axis])
    mean = e.name(step.args[3])
    variance = e.name(step.args[4])
    name = e.name(data)
    others = [i for i in range(rank) if i != axis]
    order = [others[0], axis, *others[1:]]
    if axis != 1:
        name = e.node("Transpose", [name], perm=order)
    result = e.node(
        "BatchNormalization", [name, gamma, beta, mean, variance], epsilon=float(step.attrs.epsilon)
    )
    if axis != 1:
        result = e.node("Transpose", [result], perm=[int(i) for i in np.argsort(order)])
    return [result, mean, variance]


def _standardized(data: Value, axes: list[int], epsilon: float, e: Emitter) -> str:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``."""
    name = e.name(data)
    mean = e.node("ReduceMean", [name], axes=axes, keepdims=1)
    return _by_deviation(e.node("Sub", [name, mean]), data, axes, epsilon, e)


def _by_deviation(name: str, like: Value, axes: list[int], epsilon: float, e: Emitter) -> str:
    """x / sqrt(mean(x * x) + epsilon) over ``axes``, in the dtype of ``like``."""
    square = e.node("ReduceMean", [e.node("Mul", [name, name])], axes=axes, keepdims=1)
    moved = e.node("Add", [square, e.like(epsilon, like)])
    return e.node("Div", [name, e.node("Sqrt", [moved])])


def _scaled(result: str, step: Step, e: Emitter) -> str:
    """Times gamma, plus beta, along the axis."""
    shape = step.args[0].type.concrete_shape
    rank = len(shape)
    axis = step.attrs.axis
    gamma, beta = _affine(step, e, shape[axis % rank])
    scaled = e.node("Mul", [result, e.along(gamma, axis, rank)])
    return e.node("Add", [scaled, e.along(beta, axis, rank)])


@FToOnnx.register("nn.layer_norm")
def layer_norm(step: Step, e: Emitter) -> str:
    """LayerNormalization over the last axis; over another one written out."""
    data = step.args[0]
    rank = len(data.type.shape)
    axis = step.attrs.axis % rank
    epsilon = float(step.attrs.epsilon)
    if axis == rank - 1:
        gamma, beta = _affine(step, e, data.type.concrete_shape[axis])
        inputs = [e.name(data), gamma, beta]
        return e.node("LayerNormalization", inputs, axis=-1, epsilon=epsilon)
    return _scaled(_standardized(data, [axis], epsilon, e), step, e)


@FToOnnx.register("nn.rms_norm")
def rms_norm(step: Step, e: Emitter) -> str:
    """x / sqrt(mean(x * x) + epsilon), written out."""
    data = step.args[0]
    axis = step.attrs.axis % len(data.type.shape)
    return _by_deviation(e.name(data), data, [axis], float(step.attrs.epsilon), e)


@FToOnnx.register("nn.instance_norm")
def instance_norm(step: Step, e: Emitter) -> str:
    """Statistics over the spatial axes of each sample."""
    data = step.args[0]
    rank = len(data.type.shape)
    axes = [i for i in range(1, rank) if i != step.attrs.axis % rank]
    return _scaled(_standardized(data, axes, float(step.attrs.epsilon), e), step, e)


@FToOnnx.register("nn.group_norm")
def group_norm(step: Step, e: Emitter) -> str:
    """InstanceNormalization over groups of channels (axis 1), then scale and bias by channel."""
    data = step.args[0]
    shape = data.type.concrete_shape
    if step.attrs.axis % len(shape) != 1:
        raise e.refuse(step, f"axis {step.attrs.axis}")
    groups = step.attrs.num_groups
    dtype = data.type.dtype
    flat = e.node("Reshape", [e.name(data), e.ints([shape[0], groups, -1])])
    ones = e.writer.constant(np.ones(groups, dtype))
    zeros = e.writer.constant(np.zeros(groups, dtype))
    normal = e.node("InstanceNormalization", [flat, ones, zeros], epsilon=float(step.attrs.epsilon))
    return _scaled(e.node("Reshape", [normal, e.ints(shape)]), step, e)


@FToOnnx.register("nn.l2_normalize")
def l2_normalize(step: Step, e: Emitter) -> str:
    """x / sqrt(max(sum(x²), eps))."""
    data = step.args[0]
    name = e.name(data)
    axes = e.ints(list(step.attrs.axis))
    total = e.node("ReduceSum", [e.node("Mul", [name, name]), axes], keepdims=1)
    bounded = e.node("Max", [total, e.like(step.attrs.eps, data)])
    return e.node("Div", [name, e.node("Sqrt", [bounded])])


@FToOnnx.register("nn.lrn")
def lrn(step: Step, e: Emitter) -> str:
    """LRN across channels."""
    attrs = step.attrs
    if attrs.axis != 1:
        raise e.refuse(step, f"axis {attrs.axis}")
    return e.node(
        "LRN",
        e.args(step),
        size=attrs.size,
        alpha=float(attrs.alpha),
        beta=float(attrs.beta),
        bias=float(attrs.bias),
    )
