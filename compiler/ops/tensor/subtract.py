"""subtract: out = lhs - rhs, broadcast; integers wrap.
squared_difference: out = (lhs - rhs) ** 2, broadcast, in the dtype of the operands.
"""

from __future__ import annotations

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.realize import FQRealizeRewrite, both_realized, integers
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.tensor.add import add_annotate
from compiler.ops.tensor.broadcast import binary_op
from compiler.qtypes.context import QuantizeContext

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


# ---- squared_difference ------------------------------------------------------------------------

binary_op(
    "squared_difference",
    lambda lhs, rhs: np.square(lhs - rhs),
    None,
)


@FBody.register("squared_difference")
def squared_difference_body(step: Step, words: Words) -> Value:
    """The difference times itself."""
    difference = words.subtract(*step.args)
    return words.multiply(difference, difference)
