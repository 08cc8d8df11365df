"""nn.lrn: x / (bias + alpha / size * squares of size neighbours along ``axis``) ** beta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type, is_float
from compiler.ir.type_relation import result_rel
from compiler.ops.arg_types import normalize_axis, tensor
from compiler.ops.nn.normalize import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class LRNAttrs(OpAttrs):
    """Length of the neighbourhood in elements, its axis, and the constants of the formula."""

    type_key: ClassVar[str] = "LRNAttrs"
    size: int = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75


def lrn_infer(types: Sequence[Any], attrs: LRNAttrs) -> Type:
    """Type of the data, floats."""
    data = tensor("nn.lrn", types, 0, "data")
    normalize_axis("nn.lrn", attrs.axis, len(data.shape))
    if not is_float(data.dtype) or attrs.size < 1:
        raise TypeInferenceError(f"nn.lrn: data is {data}, size {attrs.size}; floats and 1 or more")
    return data


lrn = register_op(
    "nn.lrn",
    arg_names=("data",),
    attrs_type=LRNAttrs,
    rel=result_rel(lrn_infer),
    pattern=OpPattern.OPAQUE,
)


@FNumpyCompute.register(lrn)
def lrn_numpy(attrs: LRNAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """(size - 1) // 2 neighbours before an element, the rest behind it; zeros outside."""
    data = working(args[0])
    before = (attrs.size - 1) // 2
    width = [(0, 0)] * data.ndim
    width[attrs.axis] = (before, attrs.size - 1 - before)
    squares = np.pad(np.square(data), width)
    windows = np.lib.stride_tricks.sliding_window_view(squares, attrs.size, axis=attrs.axis)
    total = windows.sum(axis=-1, dtype=data.dtype)
    kind = data.dtype.type
    scale = (kind(attrs.bias) + kind(attrs.alpha / attrs.size) * total) ** kind(attrs.beta)
    return [(data / scale).astype(args[0].dtype, copy=False)]
