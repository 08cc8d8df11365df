"""QuantizeLinear and DequantizeLinear of models that are quantized already.

A pair of them, or a DequantizeLinear of a constant, is a simulated_quantize where int8 around zero
holds the integers; everything else is plain arithmetic.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.values import Quantized, dtype_of
from compiler.ir.expr import Expr, Op
from compiler.ir.ty import TensorType, integer_range
from compiler.ops.number_format import Array
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.qtypes.qconfig import QAnnotateKind

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
    if node.has_input(2) and node.values.has_2_bits(node.proto.input[2]):
        raise node.error("values of 2 bits are read as weights only")
    data, parameters = node.arg(0), _parameters(node)
    if parameters is not None:  # for the DequantizeLinear that reads it
        found = Quantized(data, *parameters, node.attr("axis", 1))
        node.values.quantized[node.proto.output[0]] = found
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


@from_onnx("MatMulNBits", domain="com.microsoft")
def matmul_nbits(node: OnnxNode) -> Expr:
    """data W^T + bias; W[n,k] = (q[n,k] - zero[n,b]) scale[n,b] in blocks b along k."""
    rows, columns, block = (int(node.attr(name)) for name in ("N", "K", "block_size"))
    nbit, blocks = int(node.attr("bits", 4)), -(-columns // block)
    if node.has_input(4) or nbit not in (2, 4, 8):
        raise node.error(f"weights of {nbit} bits, in an order of their own or not, are not read")
    stored = node.require_known(1, "the weight").reshape(rows, -1)
    scale = node.require_known(2, "the scales").reshape(rows, blocks).astype(np.float32)
    zero = np.full((rows, blocks), 1 << (nbit - 1), np.float32)
    if node.has_input(3):
        held = node.require_known(3, "the zero points").reshape(rows, -1)
        zero = _unpacked(held, nbit, blocks) if held.dtype == np.uint8 else held
        zero = zero.astype(np.float32)
    levels = _unpacked(stored, nbit, blocks * block).reshape(rows, blocks, block)
    weight = (levels.astype(np.float32) - zero[:, :, None]) * scale[:, :, None]
    held = np.ascontiguousarray(weight.reshape(rows, -1)[:, :columns])
    result = node.call("nn.dense", node.arg(0), node.const(held), units=rows)
    return node.call("add", result, node.arg(5)) if node.has_input(5) else result


def _unpacked(rows: Array, nbit: int, count: int) -> Array:
    """Numbers of so many bits in the bytes of each row, the first in the lowest bits."""
    shifts = np.arange(0, 8, nbit, dtype=np.uint8)
    numbers = (rows[:, :, None] >> shifts) & np.uint8((1 << nbit) - 1)
    return np.asarray(numbers.reshape(len(rows), -1)[:, :count])


SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"
_INT8 = (-128, 127)
# 256 levels, counted from the zero point, which is one of them.
_ONE_BYTE = (-255, 255)
# Bounds are float32: 2^31 - 1 is not one, 2^31 is never reached by an int32.
_INT32 = (-(2.0**31), 2.0**31)


def fake_quantized(node: OnnxNode) -> Expr | None:
    """A DequantizeLinear as simulated_quantize, or None where it is none."""
    parameters = _parameters(node)
    if parameters is None:
        return None
    scale, zero_point = parameters
    stored = node.known(0)
    if stored is not None:
        return _weight(node, stored, scale, zero_point)
    source = node.values.quantized.get(node.proto.input[0])
    bounds = _bounds(zero_point, _ONE_BYTE)
    if source is None or bounds is None or source.data.tensor_type.dtype != "float32":
        return None
    same_axis = scale.ndim == 0 or source.axis == node.attr("axis", 1)
    if not (
        same_axis
        and np.array_equal(source.scale, scale)
        and np.array_equal(source.zero_point, zero_point)
        and source.zero_point.dtype == zero_point.dtype
    ):
        return None
    return _call(node, source.data, scale, bounds, QAnnotateKind.INPUT)


def _parameters(node: OnnxNode) -> tuple[Array, Array] | None:
    """Scale and zero point where they are constant: one, or one for each channel."""
    scale = node.known(1)
    if scale is None or scale.dtype != np.float32 or node.attr("block_size", 0):
        return None
    if scale.ndim > 1 or not (np.isfinite(scale) & (scale > 0)).all():
        return None
    if node.has_input(2):
        zero_point = node.known(2)
        if zero_point is None or zero_point.dtype.kind not in "iu":
            return None
    else:
        stored = node.known(0) if node.op_type == "DequantizeLinear" else None
        dtype = stored.dtype if stored is not None else np.dtype(np.uint8)
        if dtype.kind not in "iu" or node.attr("output_dtype", 0):
            return None
        zero_point = np.zeros(scale.shape, dtype)
    if zero_point.shape != scale.shape:
        return None
    if scale.shape == (1,):
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    return scale, zero_point


def _bounds(zero_point: Array, widest: tuple[int, int]) -> tuple[float, float] | None:
    """Lowest and highest integer minus the zero point, where they lie in ``widest``; else None."""
    low, high = integer_range(str(zero_point.dtype))
    zeros = np.unique(zero_point)
    if len(zeros) != 1:
        return None
    low, high = low - int(zeros[0]), high - int(zeros[0])
    return (float(low), float(high)) if low >= widest[0] and high <= widest[1] else None


def _weight(node: OnnxNode, stored: Array, scale: Array, zero_point: Array) -> Expr | None:
    bounds = _bounds(zero_point, _INT8)
    if stored.dtype == np.int32 and not zero_point.any():
        bounds = _INT32
    if bounds is None or not np.issubdtype(stored.dtype, np.integer):
        return None
    axis = _axis(node, stored.ndim, scale)
    shape = [1] * stored.ndim
    if axis is not None:
        shape[axis] = -1
        if stored.shape[axis] != scale.size:
            return None
    centred = stored.astype(np.int64) - zero_point.astype(np.int64).reshape(shape or ())
    values = centred.astype(np.float32) * scale.reshape(shape or ())
    if not np.array_equal(_simulated(values, scale, bounds, axis), values):
        return None
    weight = node.weight(0, "dequantized", lambda _: values)
    assert weight is not None
    return _call(node, weight, scale, bounds, QAnnotateKind.WEIGHT)


def _axis(node: OnnxNode, rank: int, scale: Array) -> int | None:
    return node.axis(node.attr("axis", 1), rank) if scale.ndim else None


def _simulated(values: Array, scale: Array, bounds: tuple[float, float], axis: int | None) -> Array:
    """What simulated_quantize makes of the values: others, where a tiny scale is rounded away."""
    op = Op.get(SIMULATED_QUANTIZE)
    assert op.attrs_type is not None
    attrs = op.attrs_type.make(kind=int(QAnnotateKind.WEIGHT), rounding="round_even", axis=axis)
    arrays = [values, scale, *(np.asarray(bound, np.float32) for bound in bounds)]
    out_type = TensorType(values.shape, str(values.dtype))
    return FNumpyCompute.require(op)(attrs, arrays, out_type)[0]


def _call(
    node: OnnxNode, data: Expr, scale: Array, bounds: tuple[float, float], kind: QAnnotateKind
) -> Expr:
    low, high = (node.const(np.float32(bound)) for bound in bounds)
    return node.call(
        SIMULATED_QUANTIZE,
        data,
        node.const(scale),
        low,
        high,
        kind=int(kind),
        rounding="round_even",
        axis=_axis(node, node.rank(data), scale),
        given=kind == QAnnotateKind.INPUT and scale.ndim == 0,
    )
