"""Normalizations."""

from __future__ import annotations

import math

import numpy as np
import onnx

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("BatchNormalization")
def batch_normalization(node: OnnxNode) -> list[Expr]:
    """Normalize with the stored statistics, or in training mode with those of the batch."""
    mean = node.arg(3)
    variance = node.arg(4)
    training = trains(node.proto, node.opset)
    if training:
        mean, variance = _batch_statistics(node)
    normalized = node.call(
        "nn.batch_norm",
        node.arg(0),
        node.arg(1),
        node.arg(2),
        mean,
        variance,
        axis=1,
        epsilon=node.attr("epsilon", 1e-5),
    )
    result = node.field(normalized, 0)
    if not training:
        return [result]
    running = [_running(node, node.arg(3), mean), _running(node, node.arg(4), variance)]
    saved = [mean, variance] if node.opset < 14 else []
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


def _batch_statistics(node: OnnxNode) -> tuple[Expr, ...]:
    """Mean and variance per channel over the batch."""
    data = node.arg(0)
    axes = tuple(a for a in range(node.rank(data)) if a != 1)
    return tuple(node.call("squeeze", one, axis=axes) for one in _moments(node, data, axes))


def _moments(node: OnnxNode, data: Expr, axes: tuple[int, ...]) -> tuple[Expr, Expr]:
    """Mean and variance, whose axes are kept."""
    mean = node.call("mean", data, axis=axes, keepdims=True)
    centred = node.call("subtract", data, mean)
    square = node.call("multiply", centred, centred)
    return mean, node.call("mean", square, axis=axes, keepdims=True)


def _running(node: OnnxNode, stored: Expr, batch: Expr) -> Expr:
    """stored · momentum + batch · (1 - momentum)."""
    momentum = node.attr("momentum", 0.9)
    return node.call("add", node.times(stored, momentum), node.times(batch, 1 - momentum))


@from_onnx("InstanceNormalization", since=6)
def instance_normalization(node: OnnxNode) -> Expr:
    """Statistics per sample and channel."""
    return node.call("nn.instance_norm", *node.args(), axis=1, epsilon=node.attr("epsilon", 1e-5))


@from_onnx("LayerNormalization", since=1)
@from_onnx("LayerNormalization", since=1, domain="com.microsoft")
def layer_normalization(node: OnnxNode) -> list[Expr]:
    """Over the axes from ``axis`` on; several of them are flattened first."""
    data = node.arg(0)
    shape = node.shape(data)
    axis = node.axis(node.attr("axis", -1), len(shape))
    size = math.prod(shape[axis:])
    data = node.reshaped(data, (*shape[:axis], size))

    def vector(index: int) -> Expr:
        if axis == len(shape) - 1 and node.rank(node.arg(index)) == 1:
            return node.arg(index)
        derived = node.weight(index, "flat", lambda v: v.reshape(-1))
        return derived or node.call("reshape", node.arg(index), newshape=(-1,))

    result = layer_normalized(node, data, vector(1), vector(2) if node.has_input(2) else None)
    result = node.reshaped(result, shape)
    return [result, *_statistics(node, node.arg(0), tuple(range(axis, len(shape))))]


def layer_normalized(
    node: OnnxNode, data: Expr, gamma: Expr, beta: Expr | None, epsilon: float = 1e-5
) -> Expr:
    """Over the last axis; ``epsilon`` where the node has none."""
    if beta is None:
        beta = node.const(np.zeros(node.shape(data)[-1], data.tensor_type.dtype))
    epsilon = node.attr("epsilon", epsilon)
    return node.call("nn.layer_norm", data, gamma, beta, axis=-1, epsilon=epsilon)


def _statistics(node: OnnxNode, data: Expr, axes: tuple[int, ...]) -> list[Expr]:
    """Mean and 1/sqrt(variance + epsilon), where the node has these outputs."""
    if len(node.proto.output) < 2:
        return []
    mean, spread = _moments(node, data, axes)
    moved = node.call("add", spread, node.scalar_like(node.attr("epsilon", 1e-5), data))
    return [mean, node.call("rsqrt", moved)]


@from_onnx("RMSNormalization", since=23)
@from_onnx("SimplifiedLayerNormalization", since=1)
def rms_normalization(node: OnnxNode) -> Expr:
    """Over the axes from ``axis`` on."""
    rank = node.rank(node.arg(0))
    axes = range(node.axis(node.attr("axis", -1), rank), rank)
    return rms_normalized(node, node.arg(0), node.arg(1), tuple(axes))


def rms_normalized(node: OnnxNode, data: Expr, gamma: Expr, axes: tuple[int, ...]) -> Expr:
    """x / sqrt(mean(x²) + epsilon) * gamma."""
    square = node.call("multiply", data, data)
    mean = node.call("mean", square, axis=axes, keepdims=True)
    moved = node.call("add", mean, node.scalar_like(node.attr("epsilon", 1e-5), data))
    normalized = node.call("multiply", data, node.call("rsqrt", moved))
    return node.call("multiply", normalized, gamma)


@from_onnx("LpNormalization")
def lp_normalization(node: OnnxNode) -> Expr:
    """x / |x| along one axis, p = 1 or 2."""
    data = node.arg(0)
    axis = node.axis(node.attr("axis", -1), node.rank(data))
    return normalized(node, data, axis, f"L{node.attr('p', 2)}")


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
def local_response_normalization(node: OnnxNode) -> Expr:
    """Across channels."""
    return node.call(
        "nn.lrn",
        node.arg(0),
        size=node.attr("size"),
        axis=1,
        bias=node.attr("bias", 1.0),
        alpha=node.attr("alpha", 1e-4),
        beta=node.attr("beta", 0.75),
    )
