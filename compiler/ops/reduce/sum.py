"""sum(axis, keepdims, exclude): integers wrap in their dtype; float16 adds in float32.
prod over axes (integers wrap), and logsumexp: log(sum(exp(x))) without overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.ty import Type
from compiler.ops.number_format import working
from compiler.ops.op_call import is_square, op_call
from compiler.ops.reduce.axes import ReduceAttrs, reduced_axes, reduction
from compiler.ops.reduce.reduction_loops import accumulated, lowered_reduction
from compiler.ops.rules.annotate import FQAnnotateRewrite, accumulating, kind_of, with_args
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, as_scale, moved_scale
from compiler.ops.rules.integer_calls import cast, right_shift, scalar
from compiler.ops.rules.lower import FLower
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
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

sum_ = reduction("sum")


@FNumpyCompute.register(sum_)
def sum_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data = args[0]
    axes = reduced_axes("sum", data.ndim, attrs.axis, attrs.exclude)
    if data.dtype.kind == "f":
        total = working(data).sum(axis=axes, keepdims=attrs.keepdims)
    else:
        total = data.sum(axis=axes, keepdims=attrs.keepdims, dtype=data.dtype)
    return [total.astype(data.dtype, copy=False)]


def _adds_squares(ref_call: Call, qconfig: QConfig) -> bool:
    """Whether the terms are squares, which are added as they are; LiteRT adds narrow terms."""
    return not qconfig.for_tflm and is_square(ref_call.args[0])


@FQPartitionRewrite.register(sum_, needs_tables=True)
def sum_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Squares are in the region of their sum."""
    whole = _adds_squares(ref_call, ctx.qconfig)
    return partition_pass_through(ref_call, args, ctx) if whole else None


@FQAnnotateRewrite.register(sum_, needs_tables=True)
def sum_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Narrow terms, but squares; the sum is an accumulator."""
    whole = _adds_squares(ref_call, ctx.qconfig) and kind_of(args[0]) is not None
    if not whole or ctx.check_to_skip(ref_call):
        return annotate_accumulating(ref_call, args, ctx)
    return accumulating(ref_call, args[0])


@FQDomScale.register(sum_)
def sum_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """Of squares the scale of the terms, as far as 32 bits hold their sum."""
    return moved_scale(call, scales, qconfig) if _adds_squares(call, qconfig) else None


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


@FNumpyCompute.register(prod)
def prod_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In the dtype of the data (float16 in float32)."""
    data = working(args[0])
    axes = reduced_axes("prod", data.ndim, attrs.axis, attrs.exclude)
    product = np.prod(data, axis=axes, keepdims=attrs.keepdims, dtype=data.dtype)
    return [np.asarray(product).astype(args[0].dtype, copy=False)]


FLower.register(prod)(lowered_reduction(accumulated("prod", 1)))


logsumexp = reduction("logsumexp", floats_only=True)


@FNumpyCompute.register(logsumexp)
def logsumexp_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The maximum is taken away first."""
    data = working(args[0])
    axes = reduced_axes("logsumexp", data.ndim, attrs.axis, attrs.exclude)
    top = np.max(data, axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.exp(data - top).sum(axis=axes, keepdims=True)) + top
    result = total if attrs.keepdims else total.squeeze(axes)
    return [np.asarray(result).astype(args[0].dtype, copy=False)]


@FDefinition.register(logsumexp)
def logsumexp_definition(ref_call: Call, new_args: Args) -> Expr:
    """The maximum, then the sum of exponentials; an infinite maximum counts as 0."""
    (data,), attrs, ty = new_args, ReduceAttrs.of(ref_call), ref_call.args[0].tensor_type
    axes = reduced_axes("logsumexp", len(ty.shape), attrs.axis, attrs.exclude)
    if not axes:
        return data
    top = op_call("max", data, axis=axes, keepdims=True)
    top = op_call("where", op_call("isfinite", top), top, scalar(0, ty.dtype))
    terms = op_call("exp", op_call("subtract", data, top))
    total = op_call("log", op_call("sum", terms, axis=axes, keepdims=attrs.keepdims))
    return op_call("add", total, top if attrs.keepdims else op_call("squeeze", top, axis=axes))
