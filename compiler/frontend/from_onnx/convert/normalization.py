"""Normalizations."""

from __future__ import annotations

import math

import numpy as np
import onnx

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.signature import Input
from compiler.ir.expr import Expr


@from_onnx("BatchNormalization")
def batch_normalization(
    node: OnnxNode,
    data: Expr,
    scale: Expr,
    bias: Expr,
    mean: Expr,
    variance: Expr,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> list[Expr]:
    """Normalize with the stored statistics, or in training mode with those of the batch."""
    stored = [mean, variance]
    training = trains(node.proto, node.opset)
    found = stored
    if training:
        axes = tuple(a for a in range(node.rank(data)) if a != 1)
        found = [node.call("squeeze", one, axis=axes) for one in _moments(node, data, axes)]
    normalized = node.call("nn.batch_norm", data, scale, bias, *found, axis=1, epsilon=epsilon)
    result = node.field(normalized, 0)
    if not training:
        return [result]
    running = [
        node.call("add", node.times(old, momentum), node.times(new, 1 - momentum))
        for old, new in zip(stored, found, strict=True)
    ]
    saved = found if node.opset < 14 else []
    return [result, *running, *saved]


def trains(proto: onnx.NodeProto, opset: int) -> bool:
    """Return whether a BatchNormalization is in training mode.

    From opset 14 an attribute says it; before, further outputs do.
    """
    if opset >= 14:
        return any(a.name == "training_mode" and a.i for a in proto.attribute)
    return any(proto.output[1:])


def training_note(model: onnx.ModelProto) -> str:
    """Return the sentence about nodes in training mode; "" where there are none."""
    opset = max((o.version for o in model.opset_import if not o.domain), default=1)
    nodes = [n for n in model.graph.node if n.op_type == "BatchNormalization" and trains(n, opset)]
    if not nodes:
        return ""
    return (
        f"BatchNormalization in training mode ({len(nodes)} nodes, first {nodes[0].name!r}): the "
        "answer depends on the other samples of a run; export the model after model.eval()"
    )


def _moments(node: OnnxNode, data: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    """Mean and variance, whose axes are kept."""
    mean = node.call("mean", data, axis=axes, keepdims=True)
    centred = node.call("subtract", data, mean)
    square = node.call("multiply", centred, centred)
    return mean, node.call("mean", square, axis=axes, keepdims=True)


@from_onnx("InstanceNormalization", since=6)
def instance_normalization(
    node: OnnxNode, data: Expr, scale: Expr, bias: Expr, *, epsilon: float = 1e-5
) -> Expr:
    """Statistics per sample and channel."""
    return node.call("nn.instance_norm", data, scale, bias, axis=1, epsilon=epsilon)


@from_onnx("LayerNormalization", since=1)
@from_onnx("LayerNormalization", since=1, domain="com.microsoft")
def layer_normalization(
    node: OnnxNode,
    data: Expr,
    scale: Input,
    bias: Input | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> list[Expr]:
    """Over the axes from ``axis`` on; several of them are flattened first."""
    shape = node.shape(data)
    axis = node.axis(axis, len(shape))
    rows = node.reshaped(data, (*shape[:axis], math.prod(shape[axis:])))

    def vector(given: Input) -> Expr:
        if axis == len(shape) - 1 and node.rank(given.expr) == 1:
            return given.expr
        derived = given.weight("flat", lambda v: v.reshape(-1))
        return derived or node.call("reshape", given.expr, newshape=(-1,))

    beta = None if bias is None else vector(bias)
    result = layer_normalized(node, rows, vector(scale), beta, epsilon)
    result = node.reshaped(result, shape)
    if len(node.proto.output) < 2:
        return [result]
    mean, spread = _moments(node, data, tuple(range(axis, len(shape))))
    moved = node.call("add", spread, node.scalar_like(epsilon, data))
    return [result, mean, node.call("rsqrt", moved)]


def layer_normalized(
    node: OnnxNode, data: Expr, gamma: Expr, beta: Expr | None, epsilon: float
) -> Expr:
    """Over the last axis."""
    if beta is None:
        beta = node.const(np.zeros(node.shape(data)[-1], data.tensor_type.dtype))
    return node.call("nn.layer_norm", data, gamma, beta, axis=-1, epsilon=epsilon)


@from_onnx("RMSNormalization", since=23)
@from_onnx("SimplifiedLayerNormalization", since=1)
def rms_normalization(
    node: OnnxNode, data: Expr, scale: Expr, *, axis: int = -1, epsilon: float = 1e-5
) -> Expr:
    """Over the axes from ``axis`` on."""
    rank = node.rank(data)
    axes = range(node.axis(axis, rank), rank)
    return rms_normalized(node, data, scale, tuple(axes), epsilon)


def rms_normalized(
    node: OnnxNode, data: Expr, gamma: Expr, axes: tuple[int, ...], epsilon: float
) -> Expr:
    """x / sqrt(mean(x²) + epsilon) * gamma."""
    square = node.call("multiply", data, data)
    mean = node.call("mean", square, axis=axes, keepdims=True)
    moved = node.call("add", mean, node.scalar_like(epsilon, data))
    normalized = node.call("multiply", data, node.call("rsqrt", moved))
    return node.call("multiply", normalized, gamma)


@from_onnx("LpNormalization")
def lp_normalization(node: OnnxNode, data: Expr, *, axis: int = -1, p: int = 2) -> Expr:
    """x / |x| along one axis, p = 1 or 2."""
    return normalized(node, data, node.axis(axis, node.rank(data)), f"L{p}")


def normalized(node: OnnxNode, data: Expr, axis: int, norm: str) -> Expr:
    """Data by their sum ("L1"), length ("L2") or largest element ("MAX"); 0 where all are 0."""
    if norm == "L1":
        total = node.call("sum", node.call("abs", data), axis=(axis,), keepdims=True)
    elif norm == "L2":
        total = node.call("multiply", data, data)
        total = node.call("sum", total, axis=(axis,), keepdims=True)
        least = node.scalar_like(float(np.finfo(total.tensor_type.dtype).smallest_subnormal), total)
        return node.call("divide", data, node.call("sqrt", node.call("maximum", total, least)))
    elif norm == "MAX":
        total = node.call("max", data, axis=(axis,), keepdims=True)
    else:
        raise node.error(f"norm {norm} is not supported; 1, 2 and MAX are")
    zero = node.call("equal", total, node.scalar_like(0, total))
    safe = node.call("where", zero, node.scalar_like(1, total), total)
    return node.call("divide", data, safe)


@from_onnx("LRN")
def local_response_normalization(
    node: OnnxNode,
    data: Expr,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Expr:
    """Across channels."""
    return node.call("nn.lrn", data, size=size, axis=1, bias=bias, alpha=alpha, beta=beta)
