"""all and any over axes, on bool."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


def _register(name: str, function: Any) -> None:
    op = register_op(
        name,
        arg_names=("data",),
        attrs_type=ReduceAttrs,
        rel=reduce_rel(name, "bool"),
        pattern=OpPattern.COMM_REDUCE,
    )

    @FNumpyCompute.register(op)
    def compute(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
        axes = reduced_axes(name, args[0].ndim, attrs.axis, attrs.exclude)
        return [function(args[0], axis=axes, keepdims=attrs.keepdims)]


_register("all", np.all)
_register("any", np.any)
