"""arange(start, stop, step; start, stop, step, dtype): start, start + step, … below stop.

The three arguments are scalar tensors; the attributes of the same names, when all are given, make
the length of the result static. Otherwise it is unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import EvaluationError, TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Cast, Scalar
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.number_format import storage_dtype
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class ArangeAttrs(OpAttrs):
    """Known bounds, in the units of the values; dtype "" means that of the arguments."""

    start: float | None = None
    stop: float | None = None
    step: float | None = None
    dtype: str = ""


_NAMES = ("start", "stop", "step")


@define_op("arange", arg_names=_NAMES, attrs_type=ArangeAttrs, pattern=OpPattern.OPAQUE)
def arange(types: Types, attrs: ArangeAttrs) -> Type:
    """A vector.

    Raises:
        TypeInferenceError: the step is 0, a bound is not finite, or an argument is no scalar.
    """
    scalars = [tensor_of_rank("arange", types, k, n, 0) for k, n in enumerate(_NAMES)]
    if attrs.step == 0:
        raise TypeInferenceError("arange: the step is 0")
    length: Dim = AnyDim()
    if attrs.start is not None and attrs.stop is not None and attrs.step is not None:
        count = (attrs.stop - attrs.start) / attrs.step
        if not math.isfinite(count):
            raise TypeInferenceError(
                f"arange: from {attrs.start} to {attrs.stop} by {attrs.step} is no finite count",
                fix="give finite bounds and a step that is not 0",
            )
        length = max(0, math.ceil(count))
    return TensorType((length,), attrs.dtype or scalars[0].dtype)


@FNumpyCompute.register(arange)
def arange_numpy(attrs: ArangeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """start + i * step in float64 or int64, then cast."""
    start, stop, step = (a.item() for a in args)
    if step == 0:
        raise EvaluationError("arange: the step is 0")
    values = np.arange(start, stop, step)
    return [values.astype(storage_dtype(attrs.dtype or str(args[0].dtype)))]


@FLower.register(arange)
def arange_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """start + step * index in int64 or float64, then cast."""
    dtype = inputs[0].dtype
    wide = "float64" if dtype.startswith("float") else "int64"
    start, _, step = (view.cast(wide).at(()) for view in inputs)

    def element(at: tuple[Scalar, ...]) -> Scalar:
        return Bin("+", start, Bin("*", Cast(wide, at[0]), step))

    held = TensorView.of(out_types[0].concrete_shape, element)
    return [held.cast(str(storage_dtype(out_types[0].dtype)))]
