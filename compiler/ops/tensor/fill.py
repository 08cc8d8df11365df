"""zeros(shape, dtype), ones(shape, dtype), full(fill_value, shape, dtype), and the *_like forms.
arange(start, stop, step; start, stop, step, dtype): start, start + step, … below stop.

The three arguments are scalar tensors; the attributes of the same names, when all are given, make
the length of the result static. Otherwise it is unknown.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.errors import EvaluationError, TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op, register_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Cast, Scalar, literal
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.number_format import convert, storage_dtype
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.rules.lower import FLower, Lowered, LowerRule, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute, of_arrays
from compiler.ops.tensor.number_rel import number_rel


class InitOpAttrs(OpAttrs):
    """Shape and dtype of a filled tensor; dtype "" means float32 (full: that of the fill value)."""

    shape: Sizes
    dtype: str = ""


def _checked_shape(op: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(d < 0 for d in shape):
        raise TypeInferenceError(f"{op}: shape {list(shape)} has a negative size")
    return shape


def _constant_fill(name: str, value: int) -> None:
    @define_op(name, arg_names=(), pattern=OpPattern.ELEMWISE)
    def op(types: Types, attrs: InitOpAttrs) -> Type:
        return TensorType(_checked_shape(name, attrs.shape), attrs.dtype or "float32")

    @FNumpyCompute.register(op)
    def compute(attrs: InitOpAttrs, args: Arrays, out_type: Type) -> list[Any]:
        return [np.full(attrs.shape, value, storage_dtype(attrs.dtype or "float32"))]


def _constant_like(name: str, value: int) -> None:
    op = register_op(name, rel=number_rel(name, bools=True), pattern=OpPattern.ELEMWISE)

    FNumpyCompute.register(op)(of_arrays(lambda data: np.full_like(data, value)))


_constant_fill("zeros", 0)
_constant_fill("ones", 1)
_constant_like("zeros_like", 0)
_constant_like("ones_like", 1)


@define_op("full", arg_names=("fill_value",), pattern=OpPattern.ELEMWISE)
def full(types: Types, attrs: InitOpAttrs) -> Type:
    """The fill value is a scalar tensor."""
    value = tensor_of_rank("full", types, 0, "fill_value", 0)
    return TensorType(_checked_shape("full", attrs.shape), attrs.dtype or value.dtype)


@FNumpyCompute.register(full)
def full_numpy(attrs: InitOpAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The fill value is cast to the dtype."""
    value = args[0]
    return [np.full(attrs.shape, convert(value, attrs.dtype) if attrs.dtype else value)]


def _filled(value: int) -> LowerRule:
    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        held = literal(value, str(storage_dtype(out_types[0].dtype)))
        return [TensorView.of(out_types[0].concrete_shape, lambda at: held)]

    return rule


FLower.register("zeros", "zeros_like")(_filled(0))
FLower.register("ones", "ones_like")(_filled(1))


@FLower.register(full)
def full_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """The scalar everywhere."""
    value = inputs[0].cast(str(storage_dtype(out_types[0].dtype))).at(())
    return [TensorView.of(out_types[0].concrete_shape, lambda at: value)]


# ---- arange ------------------------------------------------------------------------------------


class ArangeAttrs(OpAttrs):
    """Known bounds, in the units of the values; dtype "" means that of the arguments."""

    start: float | None = None
    stop: float | None = None
    step: float | None = None
    dtype: str = ""


_NAMES = ("start", "stop", "step")


@define_op("arange", arg_names=_NAMES, pattern=OpPattern.OPAQUE)
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
    (length,) = out_type.shape  # type: ignore[attr-defined]
    count = max(0, math.ceil((stop - start) / step))
    if isinstance(length, int) and count != length:
        raise EvaluationError(
            f"arange: {start} to {stop} by {step} are {count} values, not {length}"
        )
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
