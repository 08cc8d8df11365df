"""sum(axis, keepdims, exclude): integers wrap in their dtype; float16 adds in float32.
prod over axes (integers wrap), and logsumexp: log(sum(exp(x))) without overflow.
mean(axis, keepdims, exclude): integers truncate the exact sum's quotient toward zero.
variance(data, mean; axis, keepdims, exclude, unbiased): mean of (data - mean)^2 over axes.
cumsum(axis, dtype, exclusive): running sums along one axis, or of the flat tensor.

The mean of ``variance`` must broadcast against the data, as mean(…, keepdims=True) does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.routines import externs
from compiler.lir.scalars import literal
from compiler.ops.arg_types import (
    Types,
    check_floats,
    normalize_axis,
    product_of,
    same_dtype,
    tensor,
)
from compiler.ops.evaluate import computes
from compiler.ops.nn.avg_pool2d import (
    average_pool_scale,
    mean_of,
    quotient,
    realize_average_pool,
    sum_dtype,
    widened,
)
from compiler.ops.number_format import convert, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import is_square, op_call
from compiler.ops.reduce.axes import (
    ReduceAttrs,
    axes_of,
    of_axes,
    reduced_axes,
    reduced_shape,
    reduction,
)
from compiler.ops.reduce.reduction_loops import accumulated, exact_sum_dtype, lowered_reduction
from compiler.ops.rules.annotate import FQAnnotateRewrite, accumulating, kind_of, with_args
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, as_scale, moved_scale
from compiler.ops.rules.integer_calls import cast, right_shift, scalar
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import annotate_accumulating, partition_pass_through
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    require_fits,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.broadcast import broadcast_shape
from compiler.ops.transform.row_major import reshaped
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

sum_ = reduction("sum")


FNumpyCompute.register(sum_)(of_axes(lambda data, **how: data.sum(dtype=data.dtype, **how)))


def _adds_squares(ref_call: Call, qconfig: QConfig) -> bool:
    """Return whether the terms are squares, which are added as they are; LiteRT adds narrow
    terms."""
    return not qconfig.form.stores_values and is_square(ref_call.args[0])


@FQPartitionRewrite.register(sum_, needs_tables=True)
def sum_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Squares are in the region of their sum."""
    whole = _adds_squares(ref_call, ctx.qconfig)
    if whole:
        return partition_pass_through(ref_call, args, ctx)
    return None


@FQAnnotateRewrite.register(sum_, needs_tables=True)
def sum_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Narrow terms, but squares; the sum is an accumulator."""
    whole = _adds_squares(ref_call, ctx.qconfig) and kind_of(args[0]) is not None
    if not whole or ctx.check_to_skip(ref_call):
        return annotate_accumulating(ref_call, args, ctx)
    return accumulating(ref_call, args[0])


@FQDomScale.register(sum_)
def sum_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """Return the scale of a sum of squares: that of the terms, as far as 32 bits hold their sum."""
    if _adds_squares(call, qconfig):
        return moved_scale(call, scales, qconfig)
    return None


@FQRealizeRewrite.register(sum_, needs_tables=True)
def sum_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The sum in the accumulator dtype, at the scale of its terms."""
    attrs = ReduceAttrs.of(ref_call)
    shape = ref_call.args[0].tensor_type.concrete_shape
    axes = reduced_axes("sum", len(shape), attrs.axis, attrs.exclude)
    return added_up(ref_call, args[0], math.prod(shape[axis] for axis in axes), ctx)


def added_up(
    ref_call: Call,
    data: Expr,
    count: int,
    ctx: QuantizeContext,
    total_of: Callable[[Expr, str], Expr] | None = None,
    terms: Expr | None = None,
) -> Expr | None:
    """A call whose results are sums of ``count`` terms at most.

    So many terms that 32 bits do not hold their sum are added in int64; the last bits of that go.

    Args:
        total_of: makes the sums of terms in a dtype; None where they are the only operand.
        terms: the operand of the call that is added up; None for the first.
    Raises:
        IntegerOverflowError: not even int64 holds the sum.
    """
    if not isinstance(data, QRealizeIntExpr):
        return None
    rank = len((ref_call.args[0] if terms is None else terms).tensor_type.shape)
    data = to_scalar(data, rank, ctx.qconfig)
    acc = ctx.qconfig.dtype_activation
    largest = count * data.bound
    excess = max(largest.bit_length() - integer_limits(acc)[1].bit_length(), 0)
    work = "int64" if excess else acc
    require_fits(largest, work, ref_call)
    wide = data.in_dtype(work)
    total = with_args(ref_call, (wide,)) if total_of is None else total_of(wide, work)
    if not excess:
        return integers(total, data.scale, acc, ctx.bounds_of)
    # Rounded down: half a unit more could leave the accumulator again.
    kept = cast(right_shift(total, scalar(excess, work)), acc)
    scale = DomScale(as_scale(data.scale.values.astype(float) * 2**excess), wide=True)
    return integers(kept, scale, acc, ctx.bounds_of)


FLower.register(sum_)(lowered_reduction(accumulated("sum", 0)))


# ---- prod --------------------------------------------------------------------------------------

prod = reduction("prod")


FNumpyCompute.register(prod)(of_axes(lambda data, **how: data.prod(dtype=data.dtype, **how)))
FLower.register(prod)(lowered_reduction(accumulated("prod", 1)))


logsumexp = reduction("logsumexp", floats_only=True)


@FDefinition.register(logsumexp)
@computes(logsumexp)
def logsumexp_definition(ref_call: Call, new_args: Args) -> Expr:
    """The maximum, then the sum of exponentials; an infinite maximum counts as 0."""
    (data,) = new_args
    attrs = ReduceAttrs.of(ref_call)
    ty = ref_call.args[0].tensor_type
    axes = reduced_axes("logsumexp", len(ty.shape), attrs.axis, attrs.exclude)
    if not axes:
        return data
    top = op_call("max", data, axis=axes, keepdims=True)
    top = op_call("where", op_call("isfinite", top), top, scalar(0, ty.dtype))
    total = op_call("sum", op_call("exp", data - top), axis=axes, keepdims=attrs.keepdims)
    if not attrs.keepdims:
        top = op_call("squeeze", top, axis=axes)
    return op_call("log", total) + top


# ---- mean ----------------------------------------------------------------------------------------


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
        if not axes:
            return data
        return None
    count = max(math.prod(shape_of(data)[k] for k in axes), 1)
    work = exact_sum_dtype(dtype, count)
    total = words.reduce("sum", words.cast(data, work), axes)
    found = words.cast(words.truncated(total, words.constant(count, work)), dtype)
    return words.reshape(found, shape_of(step.results[0]))


# ---- variance ----------------------------------------------------------------------------------


class VarianceAttrs(ReduceAttrs):
    """Attributes as ReduceAttrs; ``unbiased`` divides by N - 1 instead of N."""

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


@FDefinition.register(variance)
@computes(variance)
def variance_definition(ref_call: Call, new_args: Args) -> Expr:
    """A sum of squares, divided."""
    attrs = VarianceAttrs.of(ref_call)
    data, mean = new_args
    ty = ref_call.args[0].tensor_type
    axes = reduced_axes("variance", len(ty.shape), attrs.axis, attrs.exclude)
    distance = data - mean
    total = distance * distance
    if axes:
        total = op_call("sum", total, axis=axes, keepdims=attrs.keepdims)
    count = math.prod(ty.concrete_shape[k] for k in axes) - int(attrs.unbiased)
    return total / scalar(count, ty.dtype)


# ---- cumsum --------------------------------------------------------------------------------------


class ScanopAttrs(OpAttrs):
    """Axis (None: flat), dtype of the sums ("": the data's); exclusive leaves the element out."""

    axis: int | None = None
    dtype: str = ""
    exclusive: bool = False


@define_op("cumsum", pattern=OpPattern.OPAQUE)
def cumsum(types: Types, attrs: ScanopAttrs) -> Type:
    """Shape of the data, flat without an axis.

    Raises:
        TypeInferenceError: the sums would be bool.
    """
    data = tensor("cumsum", types, 0, "data")
    dtype = attrs.dtype or data.dtype
    if dtype == "bool":
        raise TypeInferenceError(
            f"cumsum: argument 0 (data) is {data}, and sums are no bool", fix="give a dtype"
        )
    if attrs.axis is not None:
        normalize_axis("cumsum", attrs.axis, len(data.shape))
        return TensorType(data.shape, dtype)
    return TensorType((product_of(data.shape),), dtype)


@FNumpyCompute.register(cumsum)
def cumsum_numpy(attrs: ScanopAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Integers wrap; float16 adds in float32."""
    data = convert(args[0], attrs.dtype) if attrs.dtype else args[0]
    wide = working(data)
    flat = wide.reshape(-1) if attrs.axis is None else wide
    axis = 0 if attrs.axis is None else attrs.axis
    sums = np.cumsum(flat, axis=axis, dtype=wide.dtype)
    if attrs.exclusive:
        sums = np.roll(sums, 1, axis=axis)
        first = [slice(None)] * sums.ndim
        first[axis] = slice(0, 1)
        sums[tuple(first)] = 0
    return [sums.astype(data.dtype, copy=False)]


@FBody.register(cumsum)
def cumsum_body(step: Step, words: Words) -> Value:
    """Sums of 2, 4, 8, ... neighbours, each from two of the one before."""
    data = step.args[0]
    out = step.results[0]
    dtype = out.type.dtype
    sums = words.reshape(words.cast(data, dtype), shape_of(out))
    axis = (step.attrs.axis or 0) % len(shape_of(out))
    size = shape_of(out)[axis]

    def behind(x: Value, places: int) -> Value:
        """Return the values that stand so many places before, 0 in front of the first."""
        width = [(places * (k == axis), 0) for k in range(len(shape_of(out)))]
        return words.pad(words.slice(x, axis, 0, size - places), width, words.constant(0, dtype))

    places = 1
    while places < size:
        sums = words.add(sums, behind(sums, places))
        places *= 2
    if step.attrs.exclusive:
        return behind(sums, min(1, size))
    return sums


FQAnnotateRewrite.register(cumsum, needs_tables=True)(annotate_accumulating)


@FQRealizeRewrite.register(cumsum, needs_tables=True)
def cumsum_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The sums in the accumulator dtype, at the scale of their terms."""
    shape = ref_call.args[0].tensor_type.concrete_shape
    axis = ScanopAttrs.of(ref_call).axis
    count = math.prod(shape) if axis is None else shape[axis]
    return added_up(ref_call, args[0], count, ctx)


@externs.register("cumsum")
def cumsum_routine(attrs: Mapping[str, Any], arrays: Arrays) -> Arrays:
    """Running sums along ``axis`` (exclusive: without the element itself); integers wrap."""
    return cumsum_numpy(ScanopAttrs(**attrs), arrays, TensorType(()))


@FLower.register(cumsum)
def cumsum_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A routine; the dtype is that of the sums already."""
    attrs = ScanopAttrs.of(call)
    out = out_types[0]
    data = inputs[0].cast(out.dtype)
    if attrs.axis is None:
        data = reshaped(data, (math.prod(data.shape),))
    given = {"axis": attrs.axis or 0, "exclusive": attrs.exclusive}
    return b.extern("cumsum", [data], [(out.concrete_shape, out.dtype)], given)


FQZeroPoint.register("cumsum", "mean", "sum")(centred)
FNeverNegative.register("cumsum", "mean", "sum")(all_positive)
