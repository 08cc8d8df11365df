"""sum(axis, keepdims, exclude): integers wrap in their dtype; float16 adds in float32."""

from __future__ import annotations

from typing import Any

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.normalize import working
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

sum_ = register_op(
    "sum",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("sum"),
    pattern=OpPattern.COMM_REDUCE,
)


@FNumpyCompute.register(sum_)
def sum_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data = args[0]
    axes = reduced_axes("sum", data.ndim, attrs.axis, attrs.exclude)
    if data.dtype.kind == "f":
        total = working(data).sum(axis=axes, keepdims=attrs.keepdims)
    else:
        total = data.sum(axis=axes, keepdims=attrs.keepdims, dtype=data.dtype)
    return [total.astype(data.dtype, copy=False)]
