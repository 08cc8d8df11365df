"""Integer rules of negative: the integers change their sign in the accumulator dtype."""

from __future__ import annotations

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    accumulating,
    kind_of,
    with_args,
)
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    cast_if_needed,
    like,
    of_integers,
)
from compiler.ops.rules.with_tables import with_tables
from compiler.qtypes.context import QuantizeContext


@FQAnnotateRewrite.register("negative")
@with_tables
def negative_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """An accumulator: the smallest narrow integer has no counterpart."""
    if kind_of(args[0]) is None or ctx.check_to_skip(ref_call):
        return None
    return accumulating(ref_call, args[0])


@FQRealizeRewrite.register("negative")
@with_tables
@of_integers
def negative_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """-x at the same scale."""
    acc = ctx.qconfig.dtype_activation
    call = with_args(ref_call, (cast_if_needed(data, acc),))
    return like(data, call, dtype=acc)


FQDomScale.register("negative")(same_scale)
