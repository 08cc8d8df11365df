"""Quantization that a model brings along, as simulated_quantize, so that it can be realized.

    before                                            after
    DequantizeLinear(QuantizeLinear(x, s, z), s, z)   simulated_quantize(x, s, low - z, high - z)
    DequantizeLinear(weight, s, z)                    simulated_quantize((weight - z) s, s, …)

Scale and zero point must be constant; weights minus their zero point must fit int8. A point on an
activation is marked as given: quantization keeps it. Weights become the floats they stand for, and
quantization finds their grid again (calibration/weight_grid.py). An int32 constant (a bias)
is kept at its own scale. The values are ONNX's to the last bit, so halves go to the even neighbour.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.values import Quantized
from compiler.ir.expr import Expr, Op
from compiler.ir.ty import TensorType, integer_range
from compiler.ops.number_format import Array
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.qtypes.qconfig import QAnnotateKind

SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"
_INT8 = (-128, 127)
# 256 levels, counted from the zero point, which is one of them.
_ONE_BYTE = (-255, 255)
# Bounds are float32: 2^31 - 1 is not one, 2^31 is never reached by an int32.
_INT32 = (-(2.0**31), 2.0**31)


def remember_quantized(node: OnnxNode) -> None:
    """Note what a QuantizeLinear computes, for the DequantizeLinear that reads it."""
    parameters = _parameters(node)
    if parameters is not None:
        scale, zero_point = parameters
        found = Quantized(node.arg(0), scale, zero_point, node.attr("axis", 1))
        node.values.quantized[node.proto.output[0]] = found


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
    if source is None or bounds is None or node.type_of(source.data).dtype != "float32":
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
