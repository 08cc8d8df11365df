"""shape_of(data): the sizes as a rank-1 tensor; ndarray_size(data): the number of elements.

What they give is known from the type of the data, where that is static.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from compiler.ops.rules.simplify import FFoldFromType


class ShapeOfAttrs(OpAttrs):
    """Integer dtype of the result."""

    dtype: str = "int32"


class NdarraySizeAttrs(OpAttrs):
    """Integer dtype of the result."""

    dtype: str = "int32"


@define_op("shape_of", pattern=OpPattern.OPAQUE)
def shape_of(types: Types, attrs: ShapeOfAttrs) -> Type:
    """One element per axis."""
    rank = len(tensor("shape_of", types, 0, "data").shape)
    return TensorType((rank,), check_integer_dtype("shape_of", attrs.dtype))


@define_op("ndarray_size", pattern=OpPattern.OPAQUE)
def ndarray_size(types: Types, attrs: NdarraySizeAttrs) -> Type:
    """A scalar."""
    tensor("ndarray_size", types, 0, "data")
    return TensorType((), check_integer_dtype("ndarray_size", attrs.dtype))


@FFoldFromType.register(shape_of)
def sizes(attrs: ShapeOfAttrs, ty: TensorType) -> NDArray[np.generic]:
    """One per axis."""
    return np.asarray(ty.concrete_shape, storage_dtype(attrs.dtype))


@FFoldFromType.register(ndarray_size)
def number_of_elements(attrs: NdarraySizeAttrs, ty: TensorType) -> NDArray[np.generic]:
    """0 for a scalar, as in Relay."""
    return np.asarray(ty.num_elements if ty.shape else 0, storage_dtype(attrs.dtype))


@FNumpyCompute.register(shape_of)
def shape_of_numpy(attrs: ShapeOfAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Sizes in elements."""
    return [sizes(attrs, TensorType(args[0].shape))]


@FNumpyCompute.register(ndarray_size)
def ndarray_size_numpy(attrs: NdarraySizeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Count the elements over all axes."""
    return [number_of_elements(attrs, TensorType(args[0].shape))]


@FLower.register(shape_of, ndarray_size)
def known_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Constants."""
    value = FFoldFromType.require(call.op)(call.attrs, call.args[0].tensor_type)
    if value.ndim and value.size:
        return [b.constant(value)]
    number = literal(int(value.sum()), str(value.dtype))
    return [TensorView.of(value.shape, lambda at: number)]
