"""subtract: out = lhs - rhs, broadcast; integers wrap."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.lower import FLower, binary
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite, both_realized, integers
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.ops.tensor.add import add_annotate
from compiler.ops.tensor.broadcast import broadcast_rel
from compiler.qtypes.context import QuantizeContext

subtract = register_op(
    "subtract",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("subtract"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(subtract)
def subtract_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Difference in the operands' dtype."""
    return [np.subtract(args[0], args[1])]


FQAnnotateRewrite.register(subtract)(with_tables(add_annotate))


@FQRealizeRewrite.register(subtract)
@with_tables
def subtract_realize(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """Both sides at one scale in the accumulator dtype."""
    pair = both_realized(args)
    if pair is None:
        return None
    (lhs, rhs), scale = unify_for_add(ref_call, pair, ctx.qconfig)
    difference = with_args(ref_call, (lhs.data, rhs.data))
    acc = ctx.qconfig.dtype_activation
    return integers(difference, scale, acc, lhs.low - rhs.high, lhs.high - rhs.low)


FQZeroPoint.register(subtract)(always(ZeroPoint.TAKES))


FLower.register(subtract)(binary("-"))
