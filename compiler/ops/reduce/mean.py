"""mean(axis, keepdims, exclude): integers truncate the exact sum's quotient toward zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.avg_pool2d import mean_of, widened
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

mean = register_op(
    "mean",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("mean"),
    pattern=OpPattern.COMM_REDUCE,
)


@FNumpyCompute.register(mean)
def mean_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data = args[0]
    axes = reduced_axes("mean", data.ndim, attrs.axis, attrs.exclude)
    total = np.asarray(widened(data).sum(axis=axes, keepdims=attrs.keepdims))
    count = np.array(math.prod(data.shape[k] for k in axes))
    return [mean_of(total, count, data.dtype)]
