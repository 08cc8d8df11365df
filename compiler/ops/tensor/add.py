"""add: out = lhs + rhs, broadcast; integers wrap.
subtract: out = lhs - rhs, broadcast; integers wrap.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Args, Call, Expr, describe, is_op_call
from compiler.ir.loops import STATE
from compiler.ops.annotation.attach_simulated_quantize import (
    as_input,
    attach_simulated_quantize,
    is_quantized_constant,
)
from compiler.ops.annotation.minus_infinity import mask_point
from compiler.ops.annotation.wide_point import varies, wide_point
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    annotated,
    is_literal,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales
from compiler.ops.rules.integer_calls import add as add_call
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.partition import (
    FQPartitionRewrite,
    QPartitionExpr,
    is_partitioned,
    with_border,
)
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    Pair,
    QRealizeIntExpr,
    both_realized,
    integers,
    require_fits,
)
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.rules.zero_point import FQZeroPoint, folded, taken
from compiler.ops.tensor.broadcast import binary_op
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

add = binary_op("add", np.add, "+")


@FQPartitionRewrite.register(add)
def add_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """A constant bias stays in the region; two regions meet behind borders and go on as one."""
    lhs, rhs = args
    dtype = ctx.qconfig.dtype_input
    if is_partitioned(lhs) and is_partitioned(rhs):
        return QPartitionExpr(with_args(ref_call, (with_border(lhs), with_border(rhs))), dtype)
    if isinstance(lhs, QPartitionExpr) and is_literal(rhs):
        return QPartitionExpr(with_args(ref_call, (lhs.expr, rhs)), dtype)
    if is_partitioned(lhs) or is_partitioned(rhs):
        return with_args(ref_call, (with_border(lhs), with_border(rhs)))
    return None


@FQAnnotateRewrite.register(add)
def add_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The sum is wide even when both operands are narrow: it may not fit in their dtype."""
    if ctx.check_to_skip(ref_call):
        return None
    if all(kind_of(arg) is None for arg in args):
        return None
    stores = ctx.qconfig.form.stores_values
    if stores and any(map(varies, args)):
        # No bias that a product of TFLM takes: it is added to what the product gives.
        args = tuple(arg if is_literal(arg) else _narrow(arg, ctx) for arg in args)
    (lhs, rhs), (left, right) = args, (kind_of(args[0]), kind_of(args[1]))
    if stores and not (is_literal(lhs) or is_literal(rhs)):
        left_side = as_input(lhs, ctx)
        right_side = as_input(rhs, ctx)
        if ref_call in ctx.facts.wide_values:
            found = [_sixteen(*pair, ctx) for pair in zip(ref_call.args, args, strict=True)]
            right_side = found[1] or right_side
            left_side = found[0] or (left_side if found[1] else wide_point(left_side, ctx))
        sides = (left_side, right_side)
    elif ref_call in ctx.facts.masks:
        sides = (
            _quantized(lhs, right, ctx) if is_literal(lhs) else mask_point(lhs, ctx),
            _quantized(rhs, left, ctx) if is_literal(rhs) else mask_point(rhs, ctx),
        )
    elif ref_call in ctx.facts.stored_sums:
        sides = (as_input(lhs, ctx), as_input(rhs, ctx))
    elif left is None:
        sides = (_quantized(unannotated(lhs), right, ctx), unannotated(rhs))
    elif right is None:
        sides = (unannotated(lhs), _quantized(unannotated(rhs), left, ctx))
    elif left == right == QAnnotateKind.ACTIVATION and ref_call not in ctx.facts.wide_values:
        sides = (unannotated(lhs), _quantized(unannotated(rhs), right, ctx))
    else:
        sides = (unannotated(lhs), unannotated(rhs))
    return annotated(ref_call, sides)


def _narrow(arg: Expr, ctx: QuantizeContext) -> QAnnotateExpr:
    return QAnnotateExpr(as_input(arg, ctx), QAnnotateKind.INPUT)


def _sixteen(old: Expr, arg: Expr, ctx: QuantizeContext) -> Expr | None:
    """A side of a sum of 16 bits that has or gives so many in TFLM; None for one of 8."""
    product = is_op_call(old, "multiply") and not any(map(is_literal, old.operands()))
    if not isinstance(arg, QAnnotateExpr) or not (arg.wide or product):
        return None
    held = unannotated(arg)
    if is_op_call(old, STATE):
        return held
    return wide_point(held, ctx)


def _quantized(expr: Expr, other: QAnnotateKind | None, ctx: QuantizeContext) -> Expr:
    """A constant becomes a weight, anything else narrow; ``other`` is the other side's kind."""
    if is_literal(expr):
        kind = QAnnotateKind.WEIGHT
    else:
        kind = QAnnotateKind.INPUT
    stores = ctx.qconfig.form.stores_values
    wide = stores or other == QAnnotateKind.ACTIVATION
    own_scale = ctx.qconfig.bias_mode == "accumulator" and wide
    # A bias at the accumulator's scale cannot share its point with another accumulator's.
    shared = not (own_scale and kind == QAnnotateKind.WEIGHT)
    return attach_simulated_quantize(expr, kind, context=ctx, shared=shared)


@FQRealizeRewrite.register(add)
def add_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both sides at one scale in the accumulator dtype; float when only one side is integer."""
    pair = both_realized(args)
    if pair is None:
        if any(isinstance(arg, QRealizeIntExpr) for arg in args):
            ctx.report.diagnostics.append(
                f"{describe(ref_call)} runs in float: only one operand is quantized"
            )
        return None
    reach = ctx.reach_of(ref_call)
    with_bias = _folded(ref_call, pair)
    if with_bias is not None:
        place, more = with_bias
        bare = tuple(value.like(value.data) for value in pair)
        sides, scale = unify_for_add(ref_call, (bare[0], bare[1]), ctx.qconfig, reach)
        if np.array_equal(sides[place].scale.values, pair[place].scale.values):
            bias = sides[1 - place]
            wider = bias.like(add_call(bias.data, more))
            sides = (sides[0], wider) if place == 0 else (wider, sides[1])
            return _sum(ref_call, sides, scale, ctx)
    sides, scale = unify_for_add(ref_call, pair, ctx.qconfig, reach)
    return _sum(ref_call, sides, scale, ctx)


def _sum(ref_call: Call, sides: Pair, scale: DomScale, ctx: QuantizeContext) -> QRealizeIntExpr:
    acc = ctx.qconfig.dtype_activation
    lhs, rhs = sides
    total = integers(with_args(ref_call, (lhs.data, rhs.data)), scale, acc, ctx.bounds_of)
    require_fits(total.bound, acc, ref_call)
    if ctx.qconfig.is_relay:
        return total
    return _with_bias_last(ref_call, total, acc)


def _with_bias_last(ref_call: Call, total: QRealizeIntExpr, acc: str) -> QRealizeIntExpr:
    """Write x + (y + bias) as (x + y) + bias, if x + y fits: a requantization takes in the bias."""
    assert isinstance(total.data, Call)
    for index, side in enumerate(total.data.args):
        bias_index = _bias_index(ref_call.args[index])
        if bias_index is None or not is_op_call(side, "add"):
            continue
        operands = list(total.data.args)
        operands[index] = side.args[1 - bias_index]
        without_bias = total.like(with_args(ref_call, tuple(operands)))
        if without_bias.fits(acc):
            return total.like(add_call(without_bias.data, side.args[bias_index]))
    return total


def _bias_index(ref_arg: Expr) -> int | None:
    """Return the index of the constant operand of a sum; None for other values."""
    if is_op_call(ref_arg, "add"):
        for index, operand in enumerate(ref_arg.args):
            if is_quantized_constant(operand):
                return index
    return None


def _folded(ref_call: Call, pair: Pair) -> tuple[int, Expr] | None:
    """The side that lacks an addend while the other is a constant, which can take it in."""
    for place in (0, 1):
        more = pair[place].addend
        other = ref_call.args[1 - place]
        if more is not None and pair[1 - place].addend is None and is_quantized_constant(other):
            return place, more
    return None


@FQDomScale.register(add)
def add_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The smaller scale, where both are known."""
    lhs, rhs = scales
    if lhs is None or rhs is None or not lhs.same_axis(rhs):
        return None
    return lhs.smaller(rhs)


# ---- subtract ------------------------------------------------------------------------------------


subtract = binary_op("subtract", np.subtract, "-")


FQAnnotateRewrite.register(subtract, needs_tables=True)(add_annotate)


@FQRealizeRewrite.register(subtract, needs_tables=True)
def subtract_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both sides at one scale in the accumulator dtype."""
    pair = both_realized(args)
    if pair is None:
        return None
    (lhs, rhs), scale = unify_for_add(ref_call, pair, ctx.qconfig, ctx.reach_of(ref_call))
    difference = with_args(ref_call, (lhs.data, rhs.data))
    return integers(difference, scale, ctx.qconfig.dtype_activation, ctx.bounds_of)


FQZeroPoint.register(add)(folded)
FQZeroPoint.register(subtract)(taken)
FNeverNegative.register(add)(all_positive)
