"""QuantizeLinear and DequantizeLinear of models that are quantized already, as plain arithmetic."""

from __future__ import annotations

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import integer_range


def _per_axis(node: OnnxNode, value: Expr, data: Expr) -> Expr:
    """A scalar as it is; a vector shaped so that it broadcasts along ``axis``."""
    if node.rank(value) == 0:
        return value
    if node.rank(value) != 1 or node.attr("block_size", 0):
        raise node.error("blocked quantization is not supported")
    if node.shape(value) == (1,):
        return node.call("squeeze", value, axis=(0,))
    rank = node.rank(data)
    axis = node.axis(node.attr("axis", 1), rank)
    shape = tuple(-1 if i == axis else 1 for i in range(rank))
    return node.call("reshape", value, newshape=shape)


@from_onnx("DequantizeLinear", since=10)
def dequantize_linear(node: OnnxNode) -> Expr:
    """(x - zero_point) scale."""
    data = node.arg(0)
    scale = _per_axis(node, node.arg(1), data)
    dtype = scale.tensor_type.dtype
    result = node.call("cast", data, dtype=dtype)
    if node.has_input(2):
        zero = node.call("cast", node.arg(2), dtype=dtype)
        result = node.call("subtract", result, _per_axis(node, zero, data))
    return node.call("multiply", result, scale)


@from_onnx("QuantizeLinear", since=10)
def quantize_linear(node: OnnxNode) -> Expr:
    """saturate(round_half_to_even(x / scale) + zero_point)."""
    data = node.arg(0)
    scale = _per_axis(node, node.arg(1), data)
    target = node.arg(2).tensor_type.dtype if node.has_input(2) else "uint8"
    result = node.call("round_even", node.call("divide", data, scale))
    if node.has_input(2):
        zero = node.call("cast", node.arg(2), dtype=data.tensor_type.dtype)
        result = node.call("add", result, _per_axis(node, zero, data))
    low, high = integer_range(target)
    clipped = node.call("clip", result, a_min=float(low), a_max=float(high))
    return node.call("cast", clipped, dtype=target)
