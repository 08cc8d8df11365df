"""Rules of convolutions and matrix products: narrow operands, wide sums, products of scales."""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Args, Call, Expr, is_op_call
from compiler.ops.annotation.attach_simulated_quantize import (
    as_input,
    attach_simulated_quantize,
    quantize_kind,
)
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import annotated, kind_of
from compiler.ops.rules.dom_scale import DomScale, Scales
from compiler.ops.rules.integer_calls import cast, multiply, scalar
from compiler.ops.rules.product_shape import FQProductShape, ProductShape
from compiler.ops.rules.realize import (
    WIDE_INPUT,
    QRealizeIntExpr,
    both_realized,
    integers,
    require_fits,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_scalar, within_accumulator
from compiler.ops.rules.zero_point import ZeroPoint
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig


def annotate_matmul_like(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Input point on the data, weight point on the weight; the result is an accumulator.

    With ``integer_tables`` the computed weight of an nn.dense is an activation like the data. A
    convolution whose weight quantized operators compute stays in float.
    """
    if ctx.check_to_skip(ref_call):
        return None
    data, weight = args
    if kind_of(weight) is not None:
        dense = ctx.qconfig.integer_tables and is_op_call(ref_call, "nn.dense")
        if dense:
            return _both_narrow(ref_call, args, ctx)
        return None
    quantized = attach_simulated_quantize(weight, QAnnotateKind.WEIGHT, context=ctx)
    return annotated(ref_call, (as_input(data, ctx), quantized))


def annotate_dense(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Annotate as a convolution, unless dense layers are skipped."""
    if ctx.qconfig.skip_dense_layer:
        return None
    return annotate_matmul_like(ref_call, args, ctx)


def annotate_both_sides(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both operands become narrow integers, a constant one as a weight."""
    if ctx.check_to_skip(ref_call):
        return None
    return _both_narrow(ref_call, args, ctx)


def _both_narrow(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    return annotated(ref_call, tuple(as_input(arg, ctx) for arg in args))


def realize_matmul_like(
    ref_call: Call,
    args: Args,
    ctx: QuantizeContext,
    *,
    weight_cast_always: bool = True,
) -> Expr | None:
    """Narrow operands into an accumulator; the weight gets its cast even when it has the dtype.

    Args:
        weight_cast_always: casts where needed if not.
    Raises:
        IntegerOverflowError: so many products that their sum may leave the accumulator.
    """
    pair = both_realized(args)
    if pair is None:
        return None
    data = pair[0].settled()
    weight = pair[1]
    cfg = ctx.qconfig
    shape = FQProductShape.require(ref_call.op)(ref_call)
    ranks = tuple(len(arg.tensor_type.shape) for arg in ref_call.args)
    data = to_scalar(data, ranks[0], cfg)
    if weight.trailing is None and quantize_kind(ref_call.args[1]) != QAnnotateKind.WEIGHT:
        both = (data, weight)
        sums = shape.terms
        data, weight = within_accumulator(both, sums, (ranks[0], ranks[1]), cfg, narrow=True)
    if zero_point_of_data(ref_call, 0) is not None:
        # A truncating average of integers with a zero point comes back without one.
        data = data.with_zero_point(cfg)
    lhs_dtype = _storage(data, cfg.dtype_input, cfg.dtype_weight, cfg)
    rhs_dtype = _storage(weight, cfg.dtype_weight, cfg.dtype_input, cfg)
    data.check_fits(lhs_dtype, ref_call)
    lhs = data.in_dtype(lhs_dtype)
    if weight_cast_always or weight.dtype != rhs_dtype:
        rhs: Expr = weight.narrowed(rhs_dtype, ref_call)
    else:
        rhs = weight.data
    acc = cfg.dtype_activation
    addend = None
    if data.zero_point:
        addend = _without_zero_point(data.zero_point, rhs, shape, acc)
        lhs, ref_call = _explicitly_padded(lhs, lhs_dtype, data.zero_point, ref_call)
    assert ref_call.attrs is not None
    attrs = ref_call.attrs.with_values(out_dtype=acc)
    call = Call(ref_call.op, (lhs, rhs), attrs, ref_call.type_args, span=ref_call.span)
    scale = data.scale * _along_output(weight.scale, shape.out_trailing)
    result = integers(call, scale, acc, ctx.bounds_of, addend=addend)
    require_fits(max(result.bound, result.settled().bound), acc, ref_call)
    return result


def realize_both_sides(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """``realize_matmul_like`` for operators without a weight."""
    return realize_matmul_like(ref_call, args, ctx, weight_cast_always=False)


def _without_zero_point(zero_point: int, rhs: Expr, shape: ProductShape, acc: str) -> Expr:
    """Return the term that takes the zero point out of the sums: -zero_point * (sum of the weights)
    per channel.

    sum_k w (q - z)  =  sum_k w q  -  z sum_k w
    """
    axis = shape.weight_axis
    trailing = shape.out_trailing
    assert axis is not None
    assert trailing is not None
    total = op_call("sum", cast(rhs, acc), axis=(axis,), exclude=True)
    if trailing:
        total = op_call("reshape", total, newshape=(-1, *(1,) * trailing))
    return multiply(total, scalar(-zero_point, acc))


def _explicitly_padded(lhs: Expr, dtype: str, zero_point: int, ref_call: Call) -> tuple[Expr, Call]:
    """Padding of a convolution reads 0; here it must read the zero point, so it goes in front."""
    attrs: Any = ref_call.attrs
    padding: tuple[int, ...] = getattr(attrs, "padding", ())
    if not any(padding):
        return lhs, ref_call
    top, left, bottom, right = padding
    pairs = {"H": (top, bottom), "W": (left, right)}
    width = tuple(pairs.get(letter, (0, 0)) for letter in attrs.data_layout)
    padded = op_call("nn.pad", lhs, scalar(zero_point, dtype), pad_width=width)
    without = attrs.with_values(padding=(0, 0, 0, 0))
    call = Call(ref_call.op, ref_call.args, without, ref_call.type_args, span=ref_call.span)
    return padded, call


def zero_point_of_data(call: Call, place: int) -> ZeroPoint | None:
    """The FQZeroPoint rule of operators with a constant weight whose channels can be told apart."""
    if place != 0 or quantize_kind(call.args[1]) != QAnnotateKind.WEIGHT:
        return None
    shape = FQProductShape.require(call.op)(call)
    told_apart = shape.weight_axis is not None and shape.out_trailing is not None
    if told_apart:
        return ZeroPoint.TAKES
    return None


def _storage(value: QRealizeIntExpr, dtype: str, other: str, qconfig: QConfig) -> str:
    """``dtype``; ``other`` for a constant in place of the data, or data in place of the weight;
    unsigned where only that holds the values, 16 bits where a model brings along a zero point that
    this operand cannot have."""
    for held in (dtype, other, storage_dtype(value.low, value.high, qconfig), WIDE_INPUT):
        if held is not None and value.fits(held):
            return held
    return dtype


def weighted_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The FQDomScale rule of operators with a weight: scales of data and weight, multiplied."""
    data, weight = scales
    if data is None or weight is None or data.is_vector:
        return None
    shape = FQProductShape.require(call.op)(call)
    return data * _along_output(weight, shape.out_trailing)


def _along_output(weight: DomScale, out_trailing: int | None) -> DomScale:
    """Scales per channel of the weight run along the channel axis of the output."""
    if weight.is_vector:
        return DomScale(weight.values, out_trailing)
    return weight
