"""unary_formula, written out operator by operator."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx, emit_step
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Op
from compiler.ir.ty import TensorType
from compiler.ops.tensor.formula import COMPARISONS, reduce_words


@FToOnnx.register("unary_formula")
def unary_formula(step: Step, e: Emitter) -> str:
    """The nodes its words stand for; a constant function is spread over the shape of the data."""
    data = step.args[0]
    ty = data.type

    def number(value: float) -> Value:
        return Value(TensorType((), ty.dtype), data=np.asarray(value, ty.dtype))

    def apply(word: str, *arguments: Value) -> Value:
        inner = Step(Op.get(word), None, arguments, span=step.span)
        dtype = "bool" if word in COMPARISONS else ty.dtype
        inner.results = (Value(TensorType(ty.shape, dtype), inner),)
        emit_step(inner, e)
        return inner.result

    result: Value = reduce_words(step.attrs.formula, data, number, apply)
    name = e.name(result)
    if "x" in step.attrs.formula.split():
        return name
    return e.node("Expand", [name, e.ints(ty.concrete_shape)])
