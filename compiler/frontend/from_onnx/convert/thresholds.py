"""Activations that compare with a threshold or pick one element."""

from __future__ import annotations

import math

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("Celu", since=12)
def celu(node: OnnxNode) -> Expr:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    data = node.arg(0)
    alpha = node.attr("alpha", 1.0)
    zero = node.scalar_like(0, data)
    # exp only sees x <= 0: the branch not taken must not overflow.
    low = node.call("minimum", data, zero)
    grown = node.call("exp", node.call("multiply", low, node.scalar_like(1 / alpha, data)))
    moved = node.call("subtract", grown, node.scalar_like(1, data))
    negative = node.call("multiply", moved, node.scalar_like(alpha, data))
    return node.call("add", node.call("maximum", data, zero), negative)


@from_onnx("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    data = node.arg(0)
    limit = node.attr("lambd", 0.5)
    bias = node.scalar_like(node.attr("bias", 0.0), data)
    above = node.call("greater", data, node.scalar_like(limit, data))
    below = node.call("less", data, node.scalar_like(-limit, data))
    inside = node.call("where", above, node.call("subtract", data, bias), node.scalar_like(0, data))
    return node.call("where", below, node.call("add", data, bias), inside)


@from_onnx("ThresholdedRelu", since=10)
def thresholded_relu(node: OnnxNode) -> Expr:
    """x above alpha, 0 elsewhere."""
    data = node.arg(0)
    above = node.call("greater", data, node.scalar_like(node.attr("alpha", 1.0), data))
    return node.call("where", above, data, node.scalar_like(0, data))


def _hardmax(node: OnnxNode, data: Expr, axis: int) -> Expr:
    """1 at the first largest element along ``axis``, 0 elsewhere."""
    top = node.call("argmax", data, axis=(axis,), keepdims=False, dtype="int64")
    return node.call(
        "one_hot",
        top,
        node.scalar_like(1, data),
        node.scalar_like(0, data),
        depth=node.shape(data)[axis],
        axis=axis,
        dtype=data.tensor_type.dtype,
    )


@from_onnx("Hardmax")
def hardmax_flat(node: OnnxNode) -> Expr:
    """Before opset 13: axes from ``axis`` on are one axis."""
    data = node.arg(0)
    shape = node.shape(data)
    axis = node.axis(node.attr("axis", 1), len(shape))
    flat = node.call("reshape", data, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])))
    return node.call("reshape", _hardmax(node, flat, 1), newshape=shape)


@from_onnx("Hardmax", since=13)
def hardmax(node: OnnxNode) -> Expr:
    """Along one axis."""
    data = node.arg(0)
    return _hardmax(node, data, node.axis(node.attr("axis", -1), node.rank(data)))
