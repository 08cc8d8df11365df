"""add: out = lhs + rhs, broadcast; integers wrap."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call, Expr, describe
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    is_literal,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale, FQDomScale
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import (
    FQPartitionRewrite,
    QPartitionExpr,
    is_partitioned,
    with_border,
)
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, both_realized, integers
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.tensor.broadcast import broadcast_rel
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind
from compiler.qtypes.qconfig import QConfig

add = register_op(
    "add",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("add"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(add)
def add_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Sum in the operands' dtype."""
    return [np.add(args[0], args[1])]


@FQPartitionRewrite.register(add)
def add_partition(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
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
def add_annotate(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """The sum is wide, whatever its operands were (R-18)."""
    if ctx.check_to_skip(ref_call):
        return None
    (lhs, rhs), (left, right) = args, (kind_of(args[0]), kind_of(args[1]))
    if left is None and right is None:
        return None
    if left is None:
        sides = (_quantized(unannotated(lhs), right, ctx), unannotated(rhs))
    elif right is None:
        sides = (unannotated(lhs), _quantized(unannotated(rhs), left, ctx))
    elif left == right == QAnnotateKind.ACTIVATION and ref_call not in ctx.wide_values:
        sides = (unannotated(lhs), _quantized(unannotated(rhs), right, ctx))
    else:
        sides = (unannotated(lhs), unannotated(rhs))
    return QAnnotateExpr(with_args(ref_call, sides), QAnnotateKind.ACTIVATION)


def _quantized(expr: Expr, other: QAnnotateKind | None, ctx: QuantizeContext) -> Expr:
    """A constant becomes a weight, anything else narrow; ``other`` is the other side's kind."""
    kind = QAnnotateKind.WEIGHT if is_literal(expr) else QAnnotateKind.INPUT
    own_scale = ctx.qconfig.bias_mode == "accumulator" and other == QAnnotateKind.ACTIVATION
    # A bias at the accumulator's scale cannot share its point with another accumulator's.
    shared = not (own_scale and kind == QAnnotateKind.WEIGHT)
    return attach_simulated_quantize(expr, kind, context=ctx, shared=shared)


@FQRealizeRewrite.register(add)
def add_realize(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """Both sides at one scale in the accumulator dtype; float when only one side is integer."""
    pair = both_realized(args)
    if pair is None:
        if any(isinstance(arg, QRealizeIntExpr) for arg in args):
            ctx.report.diagnostics.append(
                f"{describe(ref_call)} runs in float: only one operand is quantized"
            )
        return None
    acc = ctx.qconfig.dtype_activation
    (lhs, rhs), scale = unify_for_add(ref_call, pair, ctx.qconfig)
    total = with_args(ref_call, (lhs.data, rhs.data))
    return integers(total, scale, acc, lhs.low + rhs.low, lhs.high + rhs.high)


@FQDomScale.register(add)
def add_scale(call: Call, scales: tuple[DomScale | None, ...], qconfig: QConfig) -> DomScale | None:
    """The smaller scale, where both are known."""
    lhs, rhs = scales
    return None if lhs is None or rhs is None or not lhs.same_axis(rhs) else lhs.smaller(rhs)
