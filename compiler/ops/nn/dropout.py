"""nn.dropout: the identity at inference; the result is a pair (data, mask), the mask all ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import STATEFUL, OpPattern, define_op
from compiler.ir.ty import TupleType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import literal
from compiler.ops.arg_types import Types, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class DropoutAttrs(OpAttrs):
    """Fraction that training would drop; inference ignores it."""

    rate: float = 0.5


@define_op("nn.dropout", pattern=OpPattern.OPAQUE, flags=(STATEFUL,))
def dropout(types: Types, attrs: DropoutAttrs) -> Type:
    """A pair of the data's type."""
    data = tensor("nn.dropout", types, 0, "data")
    return TupleType((data, data))


@FNumpyCompute.register(dropout)
def dropout_numpy(attrs: DropoutAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Nothing is dropped."""
    return [args[0], np.ones_like(args[0])]


@FLower.register(dropout)
def dropout_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """The data, and ones."""
    one = literal(1, inputs[0].dtype)
    return [inputs[0], TensorView.of(inputs[0].shape, lambda at: one)]
