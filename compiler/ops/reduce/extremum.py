"""max and min over axes; NaN wins. False is less than True."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder
from compiler.lir.nodes import Combiner
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes, reduction_layout
from compiler.ops.reduce.reduction_loops import highest, lowest, reduce_axes
from compiler.ops.rules.layout import FConvertLayout
from compiler.ops.rules.lower import FLower, Lowered, LowerRule, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


def _register(name: str, function: Any) -> None:
    op = register_op(
        name,
        arg_names=("data",),
        attrs_type=ReduceAttrs,
        rel=reduce_rel(name, bools_too=True),
        pattern=OpPattern.COMM_REDUCE,
    )

    @FNumpyCompute.register(op)
    def compute(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
        axes = reduced_axes(name, args[0].ndim, attrs.axis, attrs.exclude)
        return [function(args[0], axis=axes, keepdims=attrs.keepdims)]


_register("max", np.max)
_register("min", np.min)


def _extremum(combiner: Combiner) -> LowerRule:
    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        (data,) = inputs
        attrs = ReduceAttrs.of(call)
        axes = reduced_axes(combiner, len(data.shape), attrs.axis, attrs.exclude)
        if not axes:
            return [data]
        init = lowest(data.dtype) if combiner == "max" else highest(data.dtype)
        return [reduce_axes(b, data.shape, axes, combiner, init, data.at, keepdims=attrs.keepdims)]

    return rule


FLower.register("max")(_extremum("max"))
FLower.register("min")(_extremum("min"))
FConvertLayout.register("max", "min")(reduction_layout)
