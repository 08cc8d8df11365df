"""mean(axis, keepdims, exclude): integers truncate the exact sum's quotient toward zero.
variance(data, mean; axis, keepdims, exclude, unbiased): mean of (data - mean)^2 over axes.

``mean`` must broadcast against the data, as mean(…, keepdims=True) does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.builder import Reduction
from compiler.lir.scalars import literal
from compiler.ops.arg_types import Types, check_floats, same_dtype, tensor
from compiler.ops.nn.avg_pool2d import (
    average_pool_scale,
    mean_of,
    quotient,
    realize_average_pool,
    sum_dtype,
    widened,
)
from compiler.ops.number_format import working
from compiler.ops.op_attrs import Axes, OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.reduce.axes import ReduceAttrs, axes_of, reduced_axes, reduced_shape, reduction
from compiler.ops.reduce.reduction_loops import exact_sum_dtype, lowered_reduction
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_accumulating
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.tensor.broadcast import broadcast_shape

mean = reduction("mean")


@FNumpyCompute.register(mean)
def mean_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data = args[0]
    axes = reduced_axes("mean", data.ndim, attrs.axis, attrs.exclude)
    total = np.asarray(widened(data).sum(axis=axes, keepdims=attrs.keepdims))
    count = np.array(math.prod(data.shape[k] for k in axes))
    return [mean_of(total, count, data.dtype)]


def _counts_of(call: Call) -> NDArray[Any]:
    attrs = ReduceAttrs.of(call)
    shape = call.args[0].tensor_type.concrete_shape
    axes = reduced_axes("mean", len(shape), attrs.axis, attrs.exclude)
    return np.array([math.prod(shape[k] for k in axes)])


FQAnnotateRewrite.register(mean, needs_tables=True)(annotate_accumulating)
FQRealizeRewrite.register(mean, needs_tables=True)(realize_average_pool(_counts_of))
FQDomScale.register(mean)(average_pool_scale(_counts_of))


def _averaged(dtype: str, terms: int) -> tuple[str, Reduction]:
    """A sum, divided in the epilogue."""
    work = sum_dtype(dtype, terms)
    divisor = literal(terms, work)
    return work, Reduction(
        "sum", literal(0, work), post=lambda total, at: quotient(total, divisor, dtype)
    )


FLower.register(mean)(lowered_reduction(_averaged))


@FBody.register(mean)
def mean_body(step: Step, words: Words) -> Value | None:
    """The exact sum, divided toward zero."""
    (data,), axes = step.args, axes_of(step)
    dtype = data.type.dtype
    if not axes or dtype == "uint64":
        return data if not axes else None
    count = max(math.prod(shape_of(data)[k] for k in axes), 1)
    work = exact_sum_dtype(dtype, count)
    total = words.reduce("sum", words.cast(data, work), axes)
    found = words.cast(words.truncated(total, words.constant(count, work)), dtype)
    return words.reshape(found, shape_of(step.results[0]))


# ---- variance ----------------------------------------------------------------------------------


class VarianceAttrs(OpAttrs):
    """As ReduceAttrs; ``unbiased`` divides by N - 1 instead of N."""

    axis: Axes = None
    keepdims: bool = False
    exclude: bool = False
    unbiased: bool = False


@define_op("variance", arg_names=("data", "mean"), pattern=OpPattern.COMM_REDUCE)
def variance(types: Types, attrs: VarianceAttrs) -> Type:
    """The reduced shape of the data.

    Raises:
        TypeInferenceError: the data are not floats, or the mean does not broadcast to them.
    """
    data = tensor("variance", types, 0, "data")
    mean = tensor("variance", types, 1, "mean")
    same_dtype("variance", data, mean)
    check_floats("variance", data)
    if broadcast_shape("variance", data.shape, mean.shape) != data.shape:
        raise TypeInferenceError(
            f"variance: mean {mean} does not broadcast to data {data}",
            fix="take the mean with keepdims=True",
        )
    axes = reduced_axes("variance", len(data.shape), attrs.axis, attrs.exclude)
    return TensorType(reduced_shape(data.shape, axes, attrs.keepdims), data.dtype)


@FNumpyCompute.register(variance)
def variance_numpy(attrs: VarianceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data, mean = working(args[0]), working(args[1])
    axes = reduced_axes("variance", data.ndim, attrs.axis, attrs.exclude)
    count = math.prod(data.shape[k] for k in axes) - int(attrs.unbiased)
    total = np.asarray(np.square(data - mean).sum(axis=axes, keepdims=attrs.keepdims))
    return [(total / total.dtype.type(count)).astype(args[0].dtype, copy=False)]


@FDefinition.register(variance)
def variance_definition(ref_call: Call, new_args: Args) -> Expr:
    """A sum of squares, divided."""
    attrs, span, ty = VarianceAttrs.of(ref_call), ref_call.span, ref_call.args[0].tensor_type
    axes = reduced_axes("variance", len(ty.shape), attrs.axis, attrs.exclude)
    distance = op_call("subtract", *new_args, span=span)
    total = op_call("multiply", distance, distance, span=span)
    if axes:
        total = op_call("sum", total, axis=axes, keepdims=attrs.keepdims, span=span)
    count = math.prod(ty.concrete_shape[k] for k in axes) - int(attrs.unbiased)
    return op_call("divide", total, scalar(count, ty.dtype), span=span)
