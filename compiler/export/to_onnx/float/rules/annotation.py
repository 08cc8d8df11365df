"""Annotations: identities for values, and simulated quantization in float."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.float.rules.tensor import fits_int32, rounded_half_away, rounded_small
from compiler.ir.dataflow import Step, Value
from compiler.ops.rules.numpy_compute import FNumpyCompute


@FToOnnx.register("debug")
def debug(step: Step, e: Emitter) -> str:
    """The value itself."""
    return e.name(step.args[0])


@FToOnnx.register("nn.dropout")
def dropout(step: Step, e: Emitter) -> list[str]:
    """The value itself and a mask of ones."""
    ty = step.results[1].type
    return [e.name(step.args[0]), e.writer.constant(np.ones(ty.concrete_shape, ty.dtype))]


_IDENTITY_KIND = 0


@FToOnnx.register("relay.op.annotation.simulated_quantize")
def simulated_quantize(step: Step, e: Emitter) -> str:
    """round(clip(x / s)) s, every step in float32."""
    data, scale, low, high = step.args
    name = e.name(data)
    if int(step.attrs.kind) == _IDENTITY_KIND:
        return name
    if data.type.dtype != "float32":
        raise e.refuse(step, f"its data is {data.type.dtype}", "cast it to float32 first")
    if all(value.data is not None for value in step.args):
        # A quantized weight: onnxruntime would compute it as well, only later and in seven nodes.
        arrays = [value.data for value in step.args if value.data is not None]
        compute = FNumpyCompute.require(step.op)
        return e.writer.constant(compute(step.attrs, arrays, step.result.type)[0])
    if step.attrs.rounding == "round_even" and scale.data is not None and not scale.type.shape:
        zero = _zero_point(low, high)
        if zero is not None:
            # A seventh of the time of the nodes below.
            operands = [e.name(scale), e.writer.constant(zero)]
            levels = e.node("QuantizeLinear", [name, *operands])
            return e.node("DequantizeLinear", [levels, *operands])
    scale_name = _scale(scale, step.attrs.axis, len(data.type.shape), e)
    divided = e.node("Div", [name, scale_name])
    clipped = e.node("Clip", [divided, _scalar(low, e), _scalar(high, e)])
    if step.attrs.rounding == "round_even":
        return e.node("Mul", [e.node("Round", [clipped]), scale_name])
    if low.data is None or high.data is None or not fits_int32(float(low.data), float(high.data)):
        return e.node("Mul", [rounded_half_away(clipped, e), scale_name])
    return e.node("Mul", [rounded_small(clipped, e), scale_name])


def _zero_point(low: Value, high: Value) -> NDArray[np.uint8] | None:
    """Return the uint8 zero point of a grid that has all its numbers; None for others."""
    if low.data is None or high.data is None:
        return None
    zero = -float(low.data)
    limits = np.iinfo(np.uint8)
    whole = zero in range(limits.max + 1) and float(high.data) == limits.max - zero
    if whole:
        return np.array(zero, np.uint8)
    return None


def _scale(scale: Value, axis: int | None, rank: int, e: Emitter) -> str:
    """A vector scale shaped to broadcast along its axis."""
    if axis is None or not scale.type.shape:
        return e.name(scale)
    if scale.data is not None:
        shape = np.ones(rank, int)
        shape[axis] = -1
        return e.writer.constant(scale.data.reshape(shape))
    return e.along(e.name(scale), axis, rank)


def _scalar(value: Value, e: Emitter) -> str:
    if value.data is not None:
        return e.writer.constant(value.data.reshape(()))
    return e.name(value)
