"""Words that move integers without changing them, and casts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.export.to_onnx.emitter import FToOnnx
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range, is_float


@FToInteger.register("reshape", "transpose", "strided_slice", "broadcast_to", "concatenate", "take")
def move(step: Step, e: IntegerEmitter) -> str | Sequence[str]:
    """The plain form, which onnxruntime has for every integer dtype."""
    return FToOnnx.require(step.op)(step, e)


@FToInteger.register("cast")
def cast(step: Step, e: IntegerEmitter) -> str:
    """Cast; from floats in double, which holds every bound of 32 bits, and NaN becomes 0."""
    source, dtype = step.args[0], step.result.type.dtype
    name = e.name(source)
    if not is_float(source.type.dtype) or is_float(dtype) or dtype == "bool":
        return e.cast(name, source.type.dtype, dtype)
    if dtype in ("int64", "uint64"):
        raise e.refuse(step, f"a float cannot be limited to {dtype} in double")
    wide = e.cast(name, source.type.dtype, "float64")
    zero = e.writer.constant(np.asarray(0.0))
    number = e.node("Where", [e.node("IsNaN", [wide]), zero, wide])
    bounds = [e.writer.constant(np.asarray(b, "float64")) for b in integer_range(dtype)]
    return e.writer.cast(e.writer.cast(e.node("Clip", [number, *bounds]), "int64"), dtype)
