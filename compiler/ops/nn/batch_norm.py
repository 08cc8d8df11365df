"""nn.batch_norm at inference: (data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta.

The result is a tuple (normalised data, moving_mean, moving_var). SimplifyInference turns field 0
into a multiply and an add.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TupleType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Intrin, Scalar, Un, literal
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.nn.normalize import NormAttrs
from compiler.ops.number_format import aligned_vector, working
from compiler.ops.reduce.reduction_loops import total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "nn.batch_norm"
VECTORS = ("gamma", "beta", "moving_mean", "moving_var")


class BatchNormAttrs(NormAttrs):
    """As of the others."""


batch_norm = register_op(
    OP,
    arg_names=("data", *VECTORS),
    attrs_type=BatchNormAttrs,
    rel=vectors_along_axis(OP, *VECTORS, result=lambda data, v: TupleType((data, v, v))),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


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


@FLower.register(batch_norm)
def batch_norm_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A factor and an offset per channel, stored; then one line per element."""
    attrs = BatchNormAttrs.of(call)
    dtype = inputs[0].dtype
    work = total_dtype(dtype)
    data, gamma, beta, mean, var = (view.cast(work) for view in inputs)
    one, epsilon = literal(1, work), literal(attrs.epsilon, work)

    def scale(at: tuple[Scalar, ...]) -> Scalar:
        root = Intrin("sqrt", (Bin("+", var.at(at), epsilon),))
        inverse = Bin("/", one, root)
        return Bin("*", inverse, gamma.at(at)) if attrs.scale else inverse

    factor = b.store(TensorView.of(var.shape, scale))

    def shift(at: tuple[Scalar, ...]) -> Scalar:
        moved = Bin("*", Un("neg", mean.at(at)), factor.at(at))
        return Bin("+", moved, beta.at(at)) if attrs.center else moved

    offset = b.store(TensorView.of(var.shape, shift))
    axis = attrs.axis % len(data.shape)

    def element(at: tuple[Scalar, ...]) -> Scalar:
        channel = (at[axis],)
        return Bin("+", Bin("*", data.at(at), factor.at(channel)), offset.at(channel))

    return [TensorView.of(data.shape, element).cast(dtype), inputs[3], inputs[4]]
