"""QuantizeLinear and DequantizeLinear of models that are quantized already.

A pair of them, or a DequantizeLinear of a constant, is a simulated_quantize where int8 around zero
holds the integers (fake_quantize.py); everything else is plain arithmetic.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.convert.fake_quantize import fake_quantized, remember_quantized
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.values import dtype_of
from compiler.ir.expr import Expr
from compiler.ir.ty import integer_range

_QUANTIZED = ("int4", "uint4", "int8", "uint8", "int16", "uint16")


def check_zero_point(node: OnnxNode, index: int, of: int | None = None) -> None:
    """Refuse a zero point of another dtype than input ``of``, or than quantized values have.

    Raises:
        OnnxImportError: a cast would give NaN and wide integers a meaning that ONNX does not.
    """
    if node.has_input(index):
        dtype = node.arg(index).tensor_type.dtype
        legal = _QUANTIZED if of is None else (node.arg(of).tensor_type.dtype,)
        if dtype not in legal:
            raise node.error(f"a zero point is {dtype} where {', '.join(legal)} is due")


def _parameter(node: OnnxNode, index: int) -> Expr:
    """A scale or zero point: a Constant where it is known, since it is no weight."""
    known = node.known(index)
    return node.arg(index) if known is None else node.const(known)


def _per_axis(node: OnnxNode, value: Expr, data: Expr) -> Expr:
    """A scalar as it is; a vector or blocks shaped so that they broadcast along ``axis``."""
    if node.rank(value) == 0:
        return value
    if node.attr("block_size", 0):
        return _per_block(node, value, data)
    if node.rank(value) != 1:
        raise node.error(f"a scale or zero point of rank {node.rank(value)} needs block_size")
    if node.shape(value) == (1,):
        return node.call("squeeze", value, axis=(0,))
    rank = node.rank(data)
    axis = node.axis(node.attr("axis", 1), rank)
    shape = tuple(-1 if i == axis else 1 for i in range(rank))
    return node.call("reshape", value, newshape=shape)


def _per_block(node: OnnxNode, value: Expr, data: Expr) -> Expr:
    """One value per ``block_size`` elements along ``axis``, repeated for each of them."""
    axis = node.axis(node.attr("axis", 1), node.rank(data))
    size, block = node.shape(data)[axis], node.attr("block_size")
    blocks = node.shape(value)[axis]
    if not (blocks - 1) * block < size <= blocks * block:
        raise node.error(f"{blocks} blocks of {block} do not cover {size} elements")
    # Taking each block's value by index also cuts the last, shorter block.
    indices = node.const(np.arange(size, dtype=np.int64) // block)
    return node.call("take", value, indices, axis=axis)


@from_onnx("DequantizeLinear", since=10, folds=False)
def dequantize_linear(node: OnnxNode) -> Expr:
    """(x - zero_point) scale."""
    check_zero_point(node, 2, of=0)
    simulated = fake_quantized(node)
    if simulated is not None:
        return simulated
    data = node.arg(0)
    scale = _per_axis(node, _parameter(node, 1), data)
    dtype = scale.tensor_type.dtype
    result = node.call("cast", data, dtype=dtype)
    if node.has_input(2):
        zero = node.call("cast", _parameter(node, 2), dtype=dtype)
        result = node.call("subtract", result, _per_axis(node, zero, data))
    return node.call("multiply", result, scale)


@from_onnx("QuantizeLinear", since=10)
def quantize_linear(node: OnnxNode) -> Expr:
    """saturate(round_half_to_even(x / scale) + zero_point)."""
    check_zero_point(node, 2)
    remember_quantized(node)
    data = node.arg(0)
    scale = _per_axis(node, _parameter(node, 1), data)
    target = "uint8"
    if node.has_input(2):
        target = _parameter(node, 2).tensor_type.dtype
    elif node.attr("output_dtype", 0):
        target = dtype_of(node.attr("output_dtype"), node.label)
    result = node.call("round_even", node.call("divide", data, scale))
    if node.has_input(2):
        zero = node.call("cast", _parameter(node, 2), dtype=data.tensor_type.dtype)
        result = node.call("add", result, _per_axis(node, zero, data))
    low, high = integer_range(target)
    clipped = node.call("clip", result, a_min=float(low), a_max=float(high))
    return node.call("cast", clipped, dtype=target)
