"""zeros(shape, dtype), ones(shape, dtype), full(fill_value, shape, dtype), and the *_like forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import result_rel
from compiler.ops.arg_types import tensor_of_rank
from compiler.ops.number_format import convert, storage_dtype
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.number_rel import number_rel


@dataclass(frozen=True, eq=False)
class InitOpAttrs(OpAttrs):
    """Shape and dtype of a filled tensor; dtype "" means float32 (full: that of the fill value)."""

    type_key: ClassVar[str] = "InitOpAttrs"
    shape: tuple[int, ...]
    dtype: str = ""


def _checked_shape(op: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(d < 0 for d in shape):
        raise TypeInferenceError(f"{op}: shape {list(shape)} has a negative size")
    return shape


def _constant_fill(name: str, value: int) -> None:
    def infer(types: Sequence[Any], attrs: InitOpAttrs) -> Type:
        return TensorType(_checked_shape(name, attrs.shape), attrs.dtype or "float32")

    op = register_op(
        name,
        arg_names=(),
        attrs_type=InitOpAttrs,
        rel=result_rel(infer),
        pattern=OpPattern.ELEMWISE,
    )

    @FNumpyCompute.register(op)
    def compute(attrs: InitOpAttrs, args: Arrays, out_type: Type) -> list[Any]:
        return [np.full(attrs.shape, value, storage_dtype(attrs.dtype or "float32"))]


def _constant_like(name: str, value: int) -> None:
    op = register_op(
        name, arg_names=("data",), rel=number_rel(name, bools=True), pattern=OpPattern.ELEMWISE
    )

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [np.full_like(args[0], value)]


_constant_fill("zeros", 0)
_constant_fill("ones", 1)
_constant_like("zeros_like", 0)
_constant_like("ones_like", 1)


def full_infer(types: Sequence[Any], attrs: InitOpAttrs) -> Type:
    """The fill value is a scalar tensor."""
    value = tensor_of_rank("full", types, 0, "fill_value", 0)
    return TensorType(_checked_shape("full", attrs.shape), attrs.dtype or value.dtype)


full = register_op(
    "full",
    arg_names=("fill_value",),
    attrs_type=InitOpAttrs,
    rel=result_rel(full_infer),
    pattern=OpPattern.ELEMWISE,
)


@FNumpyCompute.register(full)
def full_numpy(attrs: InitOpAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The fill value is cast to the dtype."""
    value = args[0]
    return [np.full(attrs.shape, convert(value, attrs.dtype) if attrs.dtype else value)]
