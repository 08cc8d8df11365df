"""Normalizations that ONNX has; others are written by their definitions."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.ir.dataflow import Step


def _affine(step: Step, e: Emitter, size: int) -> tuple[str, str]:
    """gamma and beta of a normalization, ones and zeros where its flags leave them out."""
    dtype = step.args[0].type.dtype
    if step.attrs.scale:
        gamma = e.name(step.args[1])
    else:
        gamma = e.writer.constant(np.ones(size, dtype))
    if step.attrs.center:
        beta = e.name(step.args[2])
    else:
        beta = e.writer.constant(np.zeros(size, dtype))
    return gamma, beta


@FToOnnx.register("nn.batch_norm")
def batch_norm(step: Step, e: Emitter) -> list[str] | None:
    """BatchNormalization over axis 1; the statistics pass through."""
    data = step.args[0]
    rank = len(data.type.shape)
    if rank < 2:
        return None
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


@FToOnnx.register("nn.layer_norm")
def layer_norm(step: Step, e: Emitter) -> str | None:
    """LayerNormalization over the last axis."""
    data = step.args[0]
    shape = data.type.concrete_shape
    if step.attrs.axis % len(shape) != len(shape) - 1:
        return None
    inputs = [e.name(data), *_affine(step, e, shape[-1])]
    return e.node("LayerNormalization", inputs, axis=-1, epsilon=float(step.attrs.epsilon))


@FToOnnx.register("nn.group_norm")
def group_norm(step: Step, e: Emitter) -> str | None:
    """InstanceNormalization over groups of channels (axis 1), then scale and bias by channel."""
    data = step.args[0]
    shape = data.type.concrete_shape
    if step.attrs.axis % len(shape) != 1:
        return None
    groups = step.attrs.num_groups
    dtype = data.type.dtype
    flat = e.node("Reshape", [e.name(data), e.ints([shape[0], groups, -1])])
    ones = e.writer.constant(np.ones(groups, dtype))
    zeros = e.writer.constant(np.zeros(groups, dtype))
    normal = e.node("InstanceNormalization", [flat, ones, zeros], epsilon=float(step.attrs.epsilon))
    gamma, beta = (e.along(name, 1, len(shape)) for name in _affine(step, e, shape[1]))
    scaled = e.node("Mul", [e.node("Reshape", [normal, e.ints(shape)]), gamma])
    return e.node("Add", [scaled, beta])


@FToOnnx.register("nn.lrn")
def lrn(step: Step, e: Emitter) -> str | None:
    """LRN across channels."""
    attrs = step.attrs
    if attrs.axis != 1:
        return None
    return e.node(
        "LRN",
        e.args(step),
        size=attrs.size,
        alpha=float(attrs.alpha),
        beta=float(attrs.beta),
        bias=float(attrs.bias),
    )
