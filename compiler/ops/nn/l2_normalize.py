"""nn.l2_normalize: x / sqrt(max(sum(x * x), eps)) over some axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.ops.arg_types import Types, check_floats, normalize_axes, tensor
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class L2NormalizeAttrs(OpAttrs):
    """Smallest sum of squares, and the axes of the norm."""

    eps: float
    axis: tuple[int, ...]


@define_op("nn.l2_normalize", pattern=OpPattern.OUT_ELEMWISE_FUSABLE)
def l2_normalize(types: Types, attrs: L2NormalizeAttrs) -> Type:
    """Type of the data, floats.

    Raises:
        TypeInferenceError: the data are no floats, or no axis is given.
    """
    data = tensor("nn.l2_normalize", types, 0, "data")
    if not attrs.axis:
        raise TypeInferenceError("nn.l2_normalize: no axis is given", fix="name one or more")
    normalize_axes("nn.l2_normalize", attrs.axis, len(data.shape))
    check_floats("nn.l2_normalize", data)
    return data


@FNumpyCompute.register(l2_normalize)
def l2_normalize_numpy(attrs: L2NormalizeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """eps is rounded to the dtype of the data."""
    data = working(args[0])
    squares = np.square(data).sum(axis=attrs.axis, keepdims=True)
    norm = np.sqrt(np.maximum(squares, data.dtype.type(attrs.eps)))
    return [(data / norm).astype(args[0].dtype, copy=False)]
