"""prod over axes (integers wrap), and logsumexp: log(sum(exp(x))) without overflow."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.normalize import working
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

prod = register_op(
    "prod",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("prod"),
    pattern=OpPattern.COMM_REDUCE,
)


@FNumpyCompute.register(prod)
def prod_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In the dtype of the data (float16 in float32)."""
    data = working(args[0])
    axes = reduced_axes("prod", data.ndim, attrs.axis, attrs.exclude)
    product = np.prod(data, axis=axes, keepdims=attrs.keepdims, dtype=data.dtype)
    return [np.asarray(product).astype(args[0].dtype, copy=False)]


logsumexp = register_op(
    "logsumexp",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("logsumexp", floats_only=True),
    pattern=OpPattern.COMM_REDUCE,
)


@FNumpyCompute.register(logsumexp)
def logsumexp_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The maximum is taken away first."""
    data = working(args[0])
    axes = reduced_axes("logsumexp", data.ndim, attrs.axis, attrs.exclude)
    top = np.max(data, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.exp(data - top).sum(axis=axes, keepdims=True)) + top
    result = total if attrs.keepdims else total.squeeze(axes)
    return [np.asarray(result).astype(args[0].dtype, copy=False)]
