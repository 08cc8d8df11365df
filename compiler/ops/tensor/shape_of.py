"""shape_of(data): the sizes as a rank-1 tensor; ndarray_size(data): the number of elements.

What they give is known from the type of the data, where that is static.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _known_from_type(name: str, value: Callable[[TensorType], Any], vector: bool) -> None:
    """An operator of what the type of its data says: an element per axis, or a scalar."""

    @define_op(name, pattern=OpPattern.OPAQUE)
    def op(types: Types, attrs: ShapeOfAttrs) -> Type:
        rank = len(tensor(name, types, 0, "data").shape)
        return TensorType((rank,) * vector, check_integer_dtype(name, attrs.dtype))

    @FFoldFromType.register(op)
    def known(attrs: ShapeOfAttrs, ty: TensorType) -> NDArray[np.generic]:
        return np.asarray(value(ty), storage_dtype(attrs.dtype))

    @FNumpyCompute.register(op)
    def compute(attrs: ShapeOfAttrs, args: Arrays, out_type: Type) -> list[Any]:
        return [known(attrs, TensorType(args[0].shape))]

    @FLower.register(op)
    def lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        found = known(ShapeOfAttrs.of(call), call.args[0].tensor_type)
        if found.ndim and found.size:
            return [b.constant(found)]
        number = literal(int(found.sum()), str(found.dtype))
        return [TensorView.of(found.shape, lambda at: number)]


_known_from_type("shape_of", lambda ty: ty.concrete_shape, True)
# 0 for a scalar, as in Relay.
_known_from_type("ndarray_size", lambda ty: ty.num_elements if ty.shape else 0, False)
