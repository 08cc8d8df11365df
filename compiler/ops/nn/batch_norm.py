"""nn.batch_norm at inference: (data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta.

The result is a tuple (normalised data, moving_mean, moving_var). SimplifyInference turns field 0
into a multiply and an add.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.ty import TupleType, Type
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.nn.normalize import NormAttrs, floats_along_axis
from compiler.ops.number_format import aligned_vector, working
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "nn.batch_norm"
VECTORS = ("gamma", "beta", "moving_mean", "moving_var")


class BatchNormAttrs(NormAttrs):
    """As of the others."""


_rel = vectors_along_axis(OP, *VECTORS, result=lambda data, v: TupleType((data, v, v)))
batch_norm = floats_along_axis(OP, BatchNormAttrs, *VECTORS, rel=_rel)


@FNumpyCompute.register(batch_norm)
def batch_norm_numpy(attrs: BatchNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In the order of SimplifyInference, so that both give nearly the same bits."""
    data, gamma, beta, mean, var = (working(array) for array in args)
    factor = 1 / np.sqrt(var + data.dtype.type(attrs.epsilon))
    if attrs.scale:
        factor = factor * gamma
    offset = -mean * factor
    if attrs.center:
        offset = offset + beta
    factor, offset = (aligned_vector(each, attrs.axis, data.ndim) for each in (factor, offset))
    out = data * factor + offset
    return [out.astype(args[0].dtype, copy=False), args[3], args[4]]
