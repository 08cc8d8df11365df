"""maximum, minimum: the larger or the smaller of lhs and rhs, broadcast; a NaN wins.

On integers, with ``integer_tables``: both sides at one scale; LiteRT files compare narrow ones.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.never_negative import FNeverNegative, all_positive, any_positive
from compiler.ops.rules.realize import FQRealizeRewrite, both_realized, is_narrow, like
from compiler.ops.rules.unify_fields import unify_for_concatenate
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.ops.tensor.add import add_annotate
from compiler.ops.tensor.broadcast import binary_op
from compiler.qtypes.context import QuantizeContext

OPS = (binary_op("maximum", np.maximum, "max"), binary_op("minimum", np.minimum, "min"))

FQAnnotateRewrite.register(*OPS)(with_tables(add_annotate))


@FQRealizeRewrite.register(*OPS)
@with_tables
def larger_or_smaller_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The larger or the smaller of the integers."""
    pair = both_realized(args)
    if pair is None:
        return None
    if ctx.qconfig.for_tflm and all(is_narrow(each, ctx.qconfig) for each in pair):
        lhs, rhs = unify_for_concatenate(ref_call.args, pair, ctx.qconfig)
    else:
        (lhs, rhs), _ = unify_for_add(ref_call, pair, ctx.qconfig)
    return like(lhs, with_args(ref_call, (lhs.data, rhs.data)))


FQZeroPoint.register(*OPS)(always(ZeroPoint.TAKES))
FNeverNegative.register("maximum")(any_positive)
FNeverNegative.register("minimum")(all_positive)
