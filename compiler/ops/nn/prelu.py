"""nn.prelu(data, alpha; axis): x where x > 0, else alpha * x, one alpha per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.number_format import aligned_vector
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.layout import FConvertLayout, axis_layout
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.simplify import FDefinition

OP = "nn.prelu"


@dataclass(frozen=True, eq=False)
class PReluAttrs(OpAttrs):
    """The axis of the data alpha lies along."""

    axis: int = 1


prelu = register_op(
    OP,
    arg_names=("data", "alpha"),
    attrs_type=PReluAttrs,
    rel=vectors_along_axis(OP, "alpha"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(prelu)
def prelu_numpy(attrs: PReluAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Channel by channel."""
    data, alpha = args
    return [np.where(data > 0, data, data * aligned_vector(alpha, attrs.axis, data.ndim))]


@FDefinition.register(prelu)
def prelu_definition(ref_call: Call, new_args: Args) -> Expr:
    """One comparison."""
    (data, alpha), span, ty = new_args, ref_call.span, ref_call.tensor_type
    rank = len(ty.shape)
    slopes = expand_to_axis(alpha, PReluAttrs.of(ref_call).axis % rank, rank, span)
    positive = op_call("greater", data, scalar(0, ty.dtype, span), span=span)
    return op_call("where", positive, data, op_call("multiply", data, slopes, span=span), span=span)


FConvertLayout.register(prelu)(axis_layout)
