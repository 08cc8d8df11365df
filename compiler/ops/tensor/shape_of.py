"""shape_of(data): the sizes as a rank-1 tensor; ndarray_size(data): the number of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import literal
from compiler.ops.arg_types import Types, check_integer_dtype, tensor
from compiler.ops.number_format import storage_dtype
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class ShapeOfAttrs(OpAttrs):
    """Integer dtype of the result."""

    dtype: str = "int32"


@dataclass(frozen=True, eq=False)
class NdarraySizeAttrs(OpAttrs):
    """Integer dtype of the result."""

    dtype: str = "int32"


@define_op("shape_of", arg_names=("data",), attrs_type=ShapeOfAttrs, pattern=OpPattern.OPAQUE)
def shape_of(types: Types, attrs: ShapeOfAttrs) -> Type:
    """One element per axis."""
    rank = len(tensor("shape_of", types, 0, "data").shape)
    return TensorType((rank,), check_integer_dtype("shape_of", attrs.dtype))


@FNumpyCompute.register(shape_of)
def shape_of_numpy(attrs: ShapeOfAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Sizes in elements."""
    return [np.array(args[0].shape, storage_dtype(attrs.dtype))]


@define_op(
    "ndarray_size", arg_names=("data",), attrs_type=NdarraySizeAttrs, pattern=OpPattern.OPAQUE
)
def ndarray_size(types: Types, attrs: NdarraySizeAttrs) -> Type:
    """A scalar."""
    tensor("ndarray_size", types, 0, "data")
    return TensorType((), check_integer_dtype("ndarray_size", attrs.dtype))


@FNumpyCompute.register(ndarray_size)
def ndarray_size_numpy(attrs: NdarraySizeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A rank-0 argument counts 0, as in Relay."""
    data = args[0]
    return [np.array(data.size if data.ndim else 0, storage_dtype(attrs.dtype))]


@FLower.register(shape_of)
def shape_of_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Constants."""
    sizes = inputs[0].shape
    dtype = str(storage_dtype(out_types[0].dtype))
    if not sizes:
        empty = literal(0, dtype)
        return [TensorView.of((0,), lambda at: empty)]
    return [b.constant(np.array(sizes, dtype))]


@FLower.register(ndarray_size)
def ndarray_size_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A constant; 0 for a scalar, as in Relay."""
    shape = inputs[0].shape
    size = literal(math.prod(shape) if shape else 0, str(storage_dtype(out_types[0].dtype)))
    return [TensorView.of((), lambda at: size)]
