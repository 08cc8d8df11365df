"""mean(axis, keepdims, exclude): integers truncate the exact sum's quotient toward zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.scalars import literal
from compiler.ops.nn.avg_pool2d import (
    average_pool_scale,
    mean_of,
    quotient,
    realize_average_pool,
    sum_dtype,
    widened,
)
from compiler.ops.pass_through import annotate_accumulating
from compiler.ops.reduce.axes import (
    ReduceAttrs,
    axes_of,
    reduce_rel,
    reduced_axes,
    reduction_layout,
)
from compiler.ops.reduce.reduction_loops import exact_sum_dtype, reduce_axes
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.layout import FConvertLayout
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always

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


def _counts_of(call: Call) -> NDArray[Any]:
    attrs = ReduceAttrs.of(call)
    shape = call.args[0].tensor_type.concrete_shape
    axes = reduced_axes("mean", len(shape), attrs.axis, attrs.exclude)
    return np.array([math.prod(shape[k] for k in axes)])


FQAnnotateRewrite.register(mean)(with_tables(annotate_accumulating))
FQRealizeRewrite.register(mean)(with_tables(realize_average_pool(_counts_of)))
FQDomScale.register(mean)(average_pool_scale(_counts_of))
FQZeroPoint.register(mean)(always(ZeroPoint.CENTRES))


@FLower.register(mean)
def mean_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A sum, divided in the epilogue."""
    (data,) = inputs
    attrs = ReduceAttrs.of(call)
    axes = reduced_axes("mean", len(data.shape), attrs.axis, attrs.exclude)
    if not axes:
        return [data]
    count = math.prod(data.shape[k] for k in axes)
    acc = sum_dtype(data.dtype, count)
    divisor = literal(count, acc)
    found = reduce_axes(
        b,
        data.shape,
        axes,
        Reduction(
            "sum", literal(0, acc), post=lambda total, at: quotient(total, divisor, data.dtype)
        ),
        data.cast(acc).at,
        keepdims=attrs.keepdims,
    )
    return [found]


FNeverNegative.register(mean)(all_positive)
FConvertLayout.register(mean)(reduction_layout)


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
