"""nn.prelu(data, alpha; axis): x where x > 0, else alpha * x, one alpha per channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Scalar, Select
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.number_format import aligned_vector
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.layout import FConvertLayout, axis_layout
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

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


@FLower.register(prelu)
def prelu_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One comparison."""
    data, alpha = b.reusable(inputs[0]), inputs[1]
    attrs = PReluAttrs.of(call)
    axis = attrs.axis % len(data.shape)

    def at(indices: tuple[Scalar, ...]) -> Scalar:
        x = data.at(indices)
        below = Bin("*", x, alpha.at((indices[axis],)))
        return Select(Bin(">", x, like_first(0, x)), x, below)

    return [TensorView.of(data.shape, at)]


FConvertLayout.register(prelu)(axis_layout)
