"""Integer matrix products and convolutions, with zero points and requantization.

Operands become int32 less their zero points, so the product is exact; what QLinear* adds is the
float rescaling the operator's definition states.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.convert.conv import convolution
from compiler.frontend.from_onnx.convert.matmul import product
from compiler.frontend.from_onnx.convert.quant import check_zero_point
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ir.ty import integer_range


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


def _requantized(node: OnnxNode, acc: Expr, scales: tuple[Expr, Expr, Expr], zero: Expr) -> Expr:
    """saturate(round(acc · s_a · s_b / s_y) + zero) in the dtype of ``zero``."""
    scale_a, scale_b, scale_y = scales
    dtype = zero.tensor_type.dtype
    real = node.call("cast", acc, dtype="float32")

    def as_float(value: Expr) -> Expr:
        return node.call("cast", value, dtype="float32")

    factor = node.call("multiply", as_float(scale_a), as_float(scale_b))
    factor = node.call("divide", factor, as_float(scale_y))
    rounded = node.call("round_even", node.call("multiply", real, factor))
    moved = node.call("add", rounded, as_float(zero))
    low, high = integer_range(dtype)
    clipped = node.call("clip", moved, a_min=float(low), a_max=float(high))
    return node.call("cast", clipped, dtype=dtype)


@from_onnx("MatMulInteger", since=10)
def matmul_integer(node: OnnxNode) -> Expr:
    """int32 product of 8-bit operands; zero points per row of A and per column of B."""
    return product(node, _centred(node, 0, 2, -2), _centred(node, 1, 3, -1))


@from_onnx("QLinearMatMul", since=10)
def qlinear_matmul(node: OnnxNode) -> Expr:
    """Product of quantized operands, quantized again."""
    check_zero_point(node, 7)
    lhs, rhs = _centred(node, 0, 2, -2), _centred(node, 3, 5, -1)
    acc = product(node, lhs, rhs)
    scales = (
        _along(node, node.arg(1), lhs, -2),
        _along(node, node.arg(4), rhs, -1),
        _along(node, node.arg(6), acc, -2),
    )
    return _requantized(node, acc, scales, _along(node, node.arg(7), acc, -2))


@from_onnx("ConvInteger", since=10)
def conv_integer(node: OnnxNode) -> Expr:
    """int32 convolution of 8-bit operands; the weight's zero points are per output channel."""
    return convolution(node, _centred(node, 0, 2, None), _centred(node, 1, 3, 0))


@from_onnx("QLinearConv", since=10)
def qlinear_conv(node: OnnxNode) -> Expr:
    """Convolution of quantized operands, quantized again; the bias is int32 at scale s_x · s_w."""
    check_zero_point(node, 7)
    acc = convolution(node, _centred(node, 0, 2, None), _centred(node, 3, 5, 0))
    if node.has_input(8):
        acc = node.call("add", acc, _along(node, node.arg(8), acc, 1))
    scales = (node.arg(1), _along(node, node.arg(4), acc, 1), node.arg(6))
    return _requantized(node, acc, scales, node.arg(7))


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
