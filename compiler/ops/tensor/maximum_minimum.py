"""maximum, minimum: the larger or the smaller of lhs and rhs, broadcast; a NaN wins.

On integers, with ``integer_tables``: both sides at one scale; LiteRT files compare narrow ones.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.annotation.attach_simulated_quantize import is_quantized_constant
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.dom_scale import FINEST
from compiler.ops.rules.integer_calls import cast, clip, multiply, scalar
from compiler.ops.rules.never_negative import FNeverNegative, all_positive, any_positive
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    both_realized,
    integer_limits,
    integers,
)
from compiler.ops.rules.unify_scales import unify_for_add, unify_for_concatenate
from compiler.ops.rules.zero_point import FQZeroPoint, taken
from compiler.ops.tensor.add import add_annotate
from compiler.ops.tensor.broadcast import binary_op
from compiler.qtypes.context import QuantizeContext

OPS = (binary_op("maximum", np.maximum, "max"), binary_op("minimum", np.minimum, "min"))

FQAnnotateRewrite.register(*OPS, needs_tables=True)(add_annotate)


@FQRealizeRewrite.register(*OPS, needs_tables=True)
def larger_or_smaller_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The larger or the smaller of the integers."""
    pair = both_realized(args)
    if pair is None:
        return None
    lhs, rhs = (value.settled() for value in pair)
    acc = ctx.qconfig.dtype_activation
    pair = _within(ref_call.args[0], lhs, rhs, acc), _within(ref_call.args[1], rhs, lhs, acc)
    if ctx.qconfig.form.stores_values and all(each.is_narrow(ctx.qconfig) for each in pair):
        lhs, rhs = unify_for_concatenate(ref_call.args, pair, ctx.qconfig)
    else:
        (lhs, rhs), _ = unify_for_add(ref_call, pair, ctx.qconfig, ctx.reach_of(ref_call))
    return lhs.like(with_args(ref_call, (lhs.data, rhs.data)))


def _within(
    ref_arg: Expr, value: QRealizeIntExpr, other: QRealizeIntExpr, acc: str
) -> QRealizeIntExpr:
    """A constant whose every step is larger than the other side can be, such as the -1e38 that a
    running maximum begins with: just beyond the other's integers, at their scale."""
    if not is_quantized_constant(ref_arg) or other.scale.is_vector:
        return value
    beyond = other.bound + abs(other.zero_point) + 1
    # Of float64: the quotient may be beyond the largest float32.
    ratio = float(value.scale.values.min()) / float(other.scale.values.max())
    if ratio <= max(beyond, 1 / float(FINEST)) or 2 * beyond >= integer_limits(acc)[1]:
        return value
    sign = cast(clip(value.data, -1, 1), acc)
    return integers(multiply(sign, scalar(beyond, acc)), other.scale, acc, other.bounds_of)


FQZeroPoint.register(*OPS)(taken)
FNeverNegative.register("minimum")(all_positive)
FNeverNegative.register("maximum")(any_positive)
