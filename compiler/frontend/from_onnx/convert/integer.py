"""Integer matrix products and convolutions with zero points, and dynamic quantization.

Operands become int32 less their zero points, so the product is exact.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.convert.conv import convolution
from compiler.frontend.from_onnx.convert.matmul import product
from compiler.frontend.from_onnx.convert.qlinear import remember_product
from compiler.frontend.from_onnx.convert.quant import check_zero_point
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def _centred(node: OnnxNode, index: int, zero_index: int, axis: int | None) -> Expr:
    """Input ``index`` as int32 less its zero point; a vector of these lies along ``axis``."""
    check_zero_point(node, zero_index, of=index)
    data = node.call("cast", node.arg(index), dtype="int32")
    if not node.has_input(zero_index):
        return data
    zero = node.call("cast", node.arg(zero_index), dtype="int32")
    return node.call("subtract", data, _along(node, zero, data, axis))


def _along(node: OnnxNode, value: Expr, data: Expr, axis: int | None) -> Expr:
    """A scalar as it is; a vector shaped to broadcast along ``axis`` of ``data``."""
    if node.rank(value) != 1 or axis is None:
        return value
    rank = node.rank(data)
    if rank == 1:
        return value
    shape = tuple(-1 if i == axis % rank else 1 for i in range(rank))
    return node.call("reshape", value, newshape=shape)


@from_onnx("MatMulInteger", since=10)
def matmul_integer(node: OnnxNode) -> Expr:
    """int32 product of 8-bit operands; zero points per row of A and per column of B."""
    remember_product(node, "MatMul", -1)
    return product(node, _centred(node, 0, 2, -2), _centred(node, 1, 3, -1))


@from_onnx("ConvInteger", since=10)
def conv_integer(node: OnnxNode) -> Expr:
    """int32 convolution of 8-bit operands; the weight's zero points are per output channel."""
    remember_product(node, "Conv", 0)
    return convolution(node, _centred(node, 0, 2, None), _centred(node, 1, 3, 0))


@from_onnx("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: OnnxNode) -> list[Expr]:
    """uint8 by the range of the data itself: values, scale, zero point."""
    data = node.arg(0)
    axes = tuple(range(node.rank(data)))
    zero = node.scalar_like(0, data)
    high = node.call("maximum", node.call("max", data, axis=axes), zero)
    low = node.call("minimum", node.call("min", data, axis=axes), zero)
    levels = node.const(np.float32(255))
    scale = node.call("divide", node.call("subtract", high, low), levels)
    offset = node.call("divide", node.call("subtract", zero, low), scale)
    point = node.call("round_even", node.call("clip", offset, a_min=0.0, a_max=255.0))
    moved = node.call("add", node.call("round_even", node.call("divide", data, scale)), point)
    values = node.call("cast", node.call("clip", moved, a_min=0.0, a_max=255.0), dtype="uint8")
    return [values, scale, node.call("cast", point, dtype="uint8")]
