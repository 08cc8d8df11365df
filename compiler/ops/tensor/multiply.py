"""multiply: out = lhs * rhs, broadcast; integers wrap.
divide: out = lhs / rhs, broadcast; integers truncate toward zero, and give 0 over 0.

before (scales s, t)          after
divide(x, y)                  multiply(x, lookup(y, round(1 / (t y) / r))), scale s r

A divisor below 1/256 of the largest counts as that, so that the others have entries of 7 bits or
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Args, Call, Constant, Expr, is_op_call
from compiler.ir.loops import STATE
from compiler.lir.scalars import Bin, Scalar
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.nn.matmul_like import annotate_both_sides
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, product_scale
from compiler.ops.rules.lower import elementwise
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.partition import (
    FQPartitionRewrite,
    QPartitionExpr,
    inner,
    is_partitioned,
    with_border,
)
from compiler.ops.rules.realize import FQRealizeRewrite, both_realized, integers, require_fits
from compiler.ops.rules.requantize import to_scalar, within_accumulator
from compiler.ops.rules.with_tables import tabulates
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, centred
from compiler.ops.tensor.broadcast import binary_op
from compiler.ops.tensor.integer_division import truncated_quotient
from compiler.ops.tensor.scale_change import (
    annotate_scale_change,
    changed_scale,
    realize_scale_change,
)
from compiler.ops.tensor.unary_formula import (
    UnaryFormulaAttrs,
    unary_formula,
    unary_formula_realize,
)
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

multiply = binary_op("multiply", np.multiply, "*")


@FQPartitionRewrite.register(multiply)
def multiply_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Borders in front of quantized operands but states; the product starts a region."""
    if not any(map(is_partitioned, args)):
        return None
    sides = (inner(arg) if is_op_call(inner(arg), STATE) else with_border(arg) for arg in args)
    call = with_args(ref_call, tuple(sides))
    return QPartitionExpr(call, ctx.qconfig.dtype_input)


@FQAnnotateRewrite.register(multiply)
def multiply_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Narrow operands, a constant one as a weight; the product is an accumulator."""
    if kind_of(args[0]) is None and kind_of(args[1]) is None:
        return None
    rescaled = annotate_scale_change(ref_call, args, ctx)
    if rescaled is not None:
        return rescaled
    if any(is_op_call(arg, STATE) for arg in ref_call.args):
        # A state that is passed on keeps its 16 bits: arithmetic of int32 has them in TFLM too.
        sides = (
            unannotated(arg) if is_op_call(old, STATE) else as_input(arg, ctx)
            for old, arg in zip(ref_call.args, args, strict=True)
        )
        return annotated(ref_call, tuple(sides))
    return annotate_both_sides(ref_call, args, ctx)


@FQRealizeRewrite.register(multiply)
def multiply_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The product of the integers in the accumulator dtype, at the product of the scales."""
    pair = both_realized(args)
    if pair is None:
        return realize_scale_change(ref_call, args, ctx)
    lhs, rhs = pair
    if not lhs.scale.same_axis(rhs.scale):
        rhs = to_scalar(rhs, len(ref_call.args[1].tensor_type.shape), ctx.qconfig)
    acc = ctx.qconfig.dtype_activation
    if lhs.trailing is None and rhs.trailing is None:
        ranks = tuple(len(arg.tensor_type.shape) for arg in ref_call.args)
        lhs, rhs = within_accumulator((lhs, rhs), 1, (ranks[0], ranks[1]), ctx.qconfig)
    call = with_args(ref_call, (lhs.in_dtype(acc), rhs.in_dtype(acc)))
    product = integers(call, lhs.scale * rhs.scale, acc, ctx.bounds_of)
    require_fits(product.bound, acc, ref_call)
    return product


@FQDomScale.register(multiply)
def multiply_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The product of the scales; with a plain constant, that many times the scale."""
    return product_scale(call, scales, qconfig) or changed_scale(call, scales, qconfig)


# ---- divide --------------------------------------------------------------------------------------


def _quotient(lhs: NDArray[Any], rhs: NDArray[Any]) -> Any:
    if lhs.dtype.kind == "f":
        return np.divide(lhs, rhs)
    return truncated_quotient(lhs, rhs)


@elementwise
def divide_lower(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    """Integers truncate."""
    return Bin("/" if a.dtype.startswith("float") else "truncdiv", a, b)


_SPAN = 256

divide = binary_op("divide", _quotient, divide_lower)


@FQAnnotateRewrite.register(divide)
def divide_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Annotate a division: by a constant it gives another scale, by a computed value it reads
    narrow operands, as a product does."""
    computed = not isinstance(ref_call.args[1], Constant) and any(map(kind_of, args))
    if not computed or not ctx.qconfig.integer_tables or not tabulates(ctx):
        return annotate_scale_change(ref_call, args, ctx)
    return annotate_both_sides(ref_call, args, ctx)


@FQRealizeRewrite.register(divide)
def divide_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The product with a table of reciprocals."""
    pair = both_realized(args)
    if pair is None:
        return realize_scale_change(ref_call, args, ctx)
    divisor = to_scalar(pair[1], len(ref_call.args[1].tensor_type.shape), ctx.qconfig)
    largest = max(divisor.high - divisor.zero_point, divisor.zero_point - divisor.low)
    least = largest // _SPAN * float(divisor.dom_scale.data)
    if least:
        held = f"x 0.0 less x {-least} minimum x {least} maximum where"
    else:
        held = "x"
    attrs = UnaryFormulaAttrs(f"1.0 {held} divide")
    inverse = Call(unary_formula, (ref_call.args[1],), attrs, span=ref_call.span)
    factor = unary_formula_realize(inverse, (divisor,), ctx)
    product = Call(multiply, ref_call.args, span=ref_call.span)
    if factor is None:
        return None
    return multiply_realize(product, (pair[0], factor), ctx)


@FQZeroPoint.register(divide)
def divide_zero_point(call: Call, place: int) -> ZeroPoint:
    """The table of the divisor accounts for it."""
    if place:
        return ZeroPoint.TAKES
    return ZeroPoint.CENTRES


FQDomScale.register(divide)(changed_scale)


FQZeroPoint.register(multiply)(centred)
FNeverNegative.register(multiply, divide)(all_positive)
