"""nn.lrn: x / (bias + alpha / size * squares of size neighbours along ``axis``) ** beta."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type, is_float
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs, Size
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class LRNAttrs(OpAttrs):
    """Length of the neighbourhood in elements, its axis, and the constants of the formula."""

    size: Size = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75


@define_op("nn.lrn", pattern=OpPattern.OPAQUE)
def lrn(types: Types, attrs: LRNAttrs) -> Type:
    """Type of the data, floats.

    Raises:
        TypeInferenceError: the data are no floats, or the size is below 1.
    """
    data = tensor("nn.lrn", types, 0, "data")
    normalize_axis("nn.lrn", attrs.axis, len(data.shape))
    if not is_float(data.dtype) or attrs.size < 1:
        raise TypeInferenceError(f"nn.lrn: data is {data}, size {attrs.size}; floats and 1 or more")
    return data


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
