"""nn.adaptive_avg_pool2d: the mean of output_size windows that share the data out evenly.

Window i of n covers [floor(i * H / n), ceil((i + 1) * H / n)). Integers truncate like avg_pool2d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ir.type_relation import result_rel
from compiler.ops.arg_types import tensor_of_rank
from compiler.ops.nn.avg_pool2d import mean_of, widened
from compiler.ops.nn.pool import from_nchw, to_nchw
from compiler.ops.nn.window import arrange, axes_of, restore
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "nn.adaptive_avg_pool2d"


@dataclass(frozen=True, eq=False)
class AdaptivePool2DAttrs(OpAttrs):
    """Output (height, width); one value stands for both, none keeps the size of the data."""

    type_key: ClassVar[str] = "AdaptivePool2DAttrs"
    output_size: tuple[int, ...] = ()
    layout: str = "NCHW"


def adaptive_avg_pool2d_infer(types: Sequence[Any], attrs: AdaptivePool2DAttrs) -> Type:
    """The data's type with another height and width."""
    data = tensor_of_rank(OP, types, 0, "data", 4)
    axes = axes_of(OP, attrs.layout, "NCHW", "layout")
    n, c, h, w = arrange(data.shape, axes)
    if data.dtype == "bool":
        raise TypeInferenceError(f"{OP}: argument 0 (data) is {data}, numbers are needed")
    return TensorType(restore((n, c, *_sizes(attrs, h, w)), axes), data.dtype)


def _sizes(attrs: AdaptivePool2DAttrs, h: Dim, w: Dim) -> tuple[Dim, Dim]:
    size = attrs.output_size
    if len(size) > 2 or any(s < 1 for s in size):
        raise TypeInferenceError(f"{OP}: output_size {list(size)} is not one or two sizes")
    return (h, w) if not size else (size[0], size[-1])


adaptive_avg_pool2d = register_op(
    OP,
    arg_names=("data",),
    attrs_type=AdaptivePool2DAttrs,
    rel=result_rel(adaptive_avg_pool2d_infer),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(adaptive_avg_pool2d)
def adaptive_avg_pool2d_numpy(
    attrs: AdaptivePool2DAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """Window by window."""
    data = to_nchw(args[0], attrs.layout)
    h, w = data.shape[2:]
    sizes = attrs.output_size
    oh, ow = (sizes[0], sizes[-1]) if sizes else (h, w)
    wide = widened(data)
    total = np.empty((*data.shape[:2], oh, ow), wide.dtype)
    counts = np.empty((oh, ow), np.int64)
    for y, x in np.ndindex(oh, ow):
        rows = slice(y * h // oh, -(-(y + 1) * h // oh))
        columns = slice(x * w // ow, -(-(x + 1) * w // ow))
        total[:, :, y, x] = wide[:, :, rows, columns].sum(axis=(2, 3))
        counts[y, x] = (rows.stop - rows.start) * (columns.stop - columns.start)
    return [from_nchw(mean_of(total, counts, data.dtype), attrs.layout)]
