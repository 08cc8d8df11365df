"""sum(axis, keepdims, exclude): integers wrap in their dtype; float16 adds in float32."""

from __future__ import annotations

import math
from typing import Any

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.scalars import Cast, literal
from compiler.ops.number_format import working
from compiler.ops.pass_through import annotate_accumulating
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes, reduction_layout
from compiler.ops.reduce.reduction_loops import reduce_axes, total_dtype
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.integer_calls import cast, right_shift, scalar
from compiler.ops.rules.layout import FConvertLayout
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    cast_if_needed,
    integer_limits,
    integers,
    require_fits,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.qtypes.context import QuantizeContext

sum_ = register_op(
    "sum",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("sum"),
    pattern=OpPattern.COMM_REDUCE,
)


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


FQAnnotateRewrite.register(sum_)(with_tables(annotate_accumulating))


@FQRealizeRewrite.register(sum_)
@with_tables
def sum_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The sum in the accumulator dtype, at the scale of its terms.

    So many terms that 32 bits do not hold their sum are added in int64; the last bits of that go.

    Raises:
        IntegerOverflowError: not even int64 holds the sum.
    """
    (data,) = args
    attrs = ReduceAttrs.of(ref_call)
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.args[0].tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    axes = reduced_axes("sum", len(shape), attrs.axis, attrs.exclude)
    count = math.prod(shape[axis] for axis in axes)
    acc = ctx.qconfig.dtype_activation
    largest = count * data.bound
    excess = max(largest.bit_length() - integer_limits(acc)[1].bit_length(), 0)
    work = "int64" if excess else acc
    require_fits(largest, work, ref_call)
    total = with_args(ref_call, (cast_if_needed(data, work),))
    low, high = count * data.low, count * data.high
    if not excess:
        return integers(total, data.scale, acc, low, high)
    # Rounded down: half a unit more could leave the accumulator again.
    kept = cast(right_shift(total, scalar(excess, work)), acc)
    scale = DomScale(as_scale(data.scale.values.astype(float) * 2**excess), wide=True)
    return integers(kept, scale, acc, low >> excess, high >> excess)


FQZeroPoint.register(sum_)(always(ZeroPoint.CENTRES))


@FLower.register(sum_)
def sum_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction."""
    (data,) = inputs
    attrs = ReduceAttrs.of(call)
    axes = reduced_axes("sum", len(data.shape), attrs.axis, attrs.exclude)
    if not axes:
        return [data]
    acc = total_dtype(data.dtype)
    held = data.cast(acc)
    narrow = None if acc == data.dtype else lambda total, at: Cast(data.dtype, total)
    found = reduce_axes(
        b,
        data.shape,
        axes,
        Reduction("sum", literal(0, acc), post=narrow),
        held.at,
        keepdims=attrs.keepdims,
    )
    return [found]


FNeverNegative.register(sum_)(all_positive)
FConvertLayout.register(sum_)(reduction_layout)
