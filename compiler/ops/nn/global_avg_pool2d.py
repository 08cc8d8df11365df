"""nn.global_avg_pool2d: the mean of each channel; integers truncate the exact sum's quotient."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.avg_pool2d import mean_of, widened
from compiler.ops.nn.pool import GlobalPool2DAttrs, from_nchw, global_pool2d_rel, to_nchw
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

global_avg_pool2d = register_op(
    "nn.global_avg_pool2d",
    arg_names=("data",),
    attrs_type=GlobalPool2DAttrs,
    rel=global_pool2d_rel("nn.global_avg_pool2d"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(global_avg_pool2d)
def global_avg_pool2d_numpy(attrs: GlobalPool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Sums in float32 (float64 for float64) or int64."""
    data = to_nchw(args[0], attrs.layout)
    total = widened(data).sum(axis=(2, 3), keepdims=True)
    count = np.array(max(1, data.shape[2] * data.shape[3]))
    return [from_nchw(mean_of(total, count, data.dtype), attrs.layout)]
