"""nn.leaky_relu(alpha): x where x > 0, else alpha * x."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.scalars import Bin, Scalar, Select
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.number_rel import number_rel


class LeakyReluAttrs(OpAttrs):
    """Slope below zero."""

    alpha: float = 0.25


leaky_relu = register_op(
    "nn.leaky_relu",
    attrs_type=LeakyReluAttrs,
    rel=number_rel("nn.leaky_relu", floats_only=True),
    pattern=OpPattern.ELEMWISE,
)


@FNumpyCompute.register(leaky_relu)
def leaky_relu_numpy(attrs: LeakyReluAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """alpha is rounded to the dtype of the data."""
    data = args[0]
    return [np.where(data > 0, data, data * data.dtype.type(attrs.alpha))]


@FLower.register(leaky_relu)
@partial(elementwise, reads=3)
def leaky_relu_lower(attrs: LeakyReluAttrs, x: Scalar) -> Scalar:
    """One comparison."""
    below = Bin("*", x, like_first(attrs.alpha, x))
    return Select(Bin(">", x, like_first(0, x)), x, below)
