"""trilu(data, k; upper): the upper or lower triangle of the last two axes, zeros elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.lir import index
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Cast, Scalar, Select, literal
from compiler.ops.arg_types import Types, integer_tensor, tensor_of_rank
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class TriluAttrs(OpAttrs):
    """True keeps what is on and above diagonal k, False what is on and below it."""

    upper: bool = True


@define_op("trilu", arg_names=("data", "k"), pattern=OpPattern.ELEMWISE)
def trilu(types: Types, attrs: TriluAttrs) -> Type:
    """Type of the data; k is an integer scalar."""
    integer_tensor("trilu", types, 1, "k")
    tensor_of_rank("trilu", types, 1, "k", 0)
    return tensor_of_rank("trilu", types, 0, "data", 2, at_least=True)


@FNumpyCompute.register(trilu)
def trilu_numpy(attrs: TriluAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    function = np.triu if attrs.upper else np.tril
    return [function(args[0], int(args[1]))]


@FLower.register(trilu)
def trilu_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One comparison of row and column."""
    data, k = inputs
    attrs = TriluAttrs.of(call)

    def element(at: tuple[Scalar, ...]) -> Scalar:
        diagonal = Cast("int64", index.plus(at[-1], index.times(at[-2], -1)))
        limit = k.cast("int64").at(())
        kept = Bin(">=" if attrs.upper else "<=", diagonal, limit)
        return Select(kept, data.at(at), literal(0, data.dtype))

    return [TensorView.of(data.shape, element)]
