"""Rules of convolutions and matrix products: narrow operands, wide sums, products of scales."""

from __future__ import annotations

from compiler.errors import InternalQuantizeError
from compiler.ir.expr import Call, Expr, describe, is_op_call
from compiler.ops.annotation.attach_simulated_quantize import as_input, attach_simulated_quantize
from compiler.ops.rules.annotate import (
    QAnnotateExpr,
    is_literal,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.rules.realize import (
    QRealizeIntExpr,
    both_realized,
    cast_if_needed,
    check_fits,
    fits,
    integers,
    narrowed,
    require_fits,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind
from compiler.qtypes.qconfig import QConfig

Args = tuple[Expr, ...]


def annotate_matmul_like(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Input point on the data, weight point on the weight; the result is an accumulator.

    With ``integer_tables`` the computed weight of an nn.dense is an activation like the data.

    Raises:
        InternalQuantizeError: the weight is itself the result of quantized operators.
    """
    if ctx.check_to_skip(ref_call):
        return None
    data, weight = args
    if kind_of(weight) is not None:
        if ctx.qconfig.integer_tables and is_op_call(ref_call, "nn.dense"):
            return _both_narrow(ref_call, args, ctx)
        raise InternalQuantizeError(
            f"the weight of this {describe(ref_call)} is computed by quantized operators",
            fix="leave the operators that compute it in float (skip_conv_layers)",
            span=ref_call.span,
        )
    quantized = attach_simulated_quantize(weight, QAnnotateKind.WEIGHT, context=ctx)
    call = with_args(ref_call, (as_input(data, ctx), quantized))
    return QAnnotateExpr(call, QAnnotateKind.ACTIVATION)


def annotate_dense(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """As a convolution, unless dense layers are skipped."""
    if ctx.qconfig.skip_dense_layer:
        return None
    return annotate_matmul_like(ref_call, args, ctx)


def annotate_both_sides(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both operands become narrow integers, a constant one as a weight."""
    if ctx.check_to_skip(ref_call):
        return None
    return _both_narrow(ref_call, args, ctx)


def _both_narrow(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    sides = tuple(_operand(arg, ctx) for arg in args)
    return QAnnotateExpr(with_args(ref_call, sides), QAnnotateKind.ACTIVATION)


def _operand(arg: Expr, ctx: QuantizeContext) -> Expr:
    if kind_of(arg) in (QAnnotateKind.INPUT, QAnnotateKind.WEIGHT):
        return unannotated(arg)
    expr = unannotated(arg)
    if is_literal(expr):
        return attach_simulated_quantize(expr, QAnnotateKind.WEIGHT, context=ctx)
    return as_input(arg, ctx)


def realize_matmul_like(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Narrow operands into an accumulator; the weight gets its cast even when it has the dtype.

    Raises:
        IntegerOverflowError: so many products that their sum may leave the accumulator.
    """
    return _realize_product(ref_call, args, ctx, weight_cast_always=True)


def realize_both_sides(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """As ``realize_matmul_like``, for operators without a weight: casts where needed."""
    return _realize_product(ref_call, args, ctx, weight_cast_always=False)


def _realize_product(
    ref_call: Call, args: Args, ctx: QuantizeContext, weight_cast_always: bool
) -> Expr | None:
    pair = both_realized(args)
    if pair is None:
        return None
    data, weight = pair
    cfg = ctx.qconfig
    shape = FQProductShape.require(ref_call.op)(ref_call)  # type: ignore[arg-type]
    data = to_scalar(data, len(ref_call.args[0].tensor_type.shape), cfg)
    lhs_dtype = _storage(data, cfg.dtype_input, cfg.dtype_weight)
    rhs_dtype = _storage(weight, cfg.dtype_weight, cfg.dtype_input)
    check_fits(data, lhs_dtype, ref_call)
    lhs = cast_if_needed(data, lhs_dtype)
    if weight_cast_always or weight.dtype != rhs_dtype:
        rhs: Expr = narrowed(weight, rhs_dtype, ref_call)
    else:
        rhs = weight.data
    bound = shape.terms * data.bound * weight.bound
    require_fits(bound, cfg.dtype_activation, ref_call)
    assert ref_call.attrs is not None
    attrs = ref_call.attrs.with_values(out_dtype=cfg.dtype_activation)
    call = Call(ref_call.op, (lhs, rhs), attrs, ref_call.type_args, span=ref_call.span)
    scale = data.scale * _along_output(weight.scale, shape.out_trailing)
    return integers(call, scale, cfg.dtype_activation, -bound, bound)


def _storage(value: QRealizeIntExpr, dtype: str, other: str) -> str:
    """``dtype``; ``other`` for a constant in place of the data, or data in place of the weight."""
    return other if fits(value, other) and not fits(value, dtype) else dtype


def weighted_scale(
    call: Call, scales: tuple[DomScale | None, ...], qconfig: QConfig
) -> DomScale | None:
    """The FQDomScale rule of operators with a weight: scales of data and weight, multiplied."""
    data, weight = scales
    if data is None or weight is None or data.is_vector:
        return None
    shape = FQProductShape.require(call.op)(call)  # type: ignore[arg-type]
    return data * _along_output(weight, shape.out_trailing)


def _along_output(weight: DomScale, out_trailing: int | None) -> DomScale:
    """Scales per channel of the weight run along the channel axis of the output."""
    return DomScale(weight.values, out_trailing) if weight.is_vector else weight
