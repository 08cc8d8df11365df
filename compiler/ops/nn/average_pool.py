"""Rules of average pooling: nn.avg_pool2d and nn.global_avg_pool2d.

Integer pooling truncates its quotient toward zero. With ``avg_pool_round`` nothing is lost there:

    before               after, L = least common multiple of the window counts
    avg_pool(d), s       avg_pool(d * L), s / L

Every window's sum is then a multiple of its count, and the requantization that follows makes the
only rounding. Relay divides integers and truncates, which loses up to one step towards zero. Sums
that do not fit in 32 bits are computed in int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.pass_through import annotate_accumulating, annotate_pass_through
from compiler.ops.rules.annotate import with_args
from compiler.ops.rules.dom_scale import DomScale, Scales
from compiler.ops.rules.integer_calls import cast, multiply, scalar
from compiler.ops.rules.realize import (
    QRealizeIntExpr,
    RealizeRule,
    cast_if_needed,
    integer_limits,
    integers,
    require_fits,
)
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

Counts = Callable[[Call], np.ndarray[Any, np.dtype[np.int64]]]
"""``counts(call)``: the divisors of the output positions of a typed pooling call."""


def annotate_average_pool(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Passes the kind on; with avg_pool_round it sums narrow integers into an accumulator."""
    if not ctx.qconfig.avg_pool_round:
        return annotate_pass_through(ref_call, args, ctx)
    return annotate_accumulating(ref_call, args, ctx)


def realize_average_pool(counts: Counts) -> RealizeRule:
    """The rule of one pooling operator."""

    def realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
        (data,) = args
        if not isinstance(data, QRealizeIntExpr):
            return None
        acc = ctx.qconfig.dtype_activation
        windows = counts(ref_call)
        factor = exact_factor(windows, data.bound, ctx.qconfig)
        # The mean fits wherever the data do; only the sum it is made of may need more room.
        largest = data.bound * factor * int(windows.max())
        work = acc if largest <= integer_limits(acc)[1] else "int64"
        require_fits(largest, work, ref_call)
        wide = cast_if_needed(data, work)
        if factor > 1:
            wide = multiply(wide, scalar(factor, work))
        mean: Expr = with_args(ref_call, (wide,))
        if work != acc:
            mean = cast(mean, acc)
        low, high = data.low * factor, data.high * factor
        return integers(mean, data.scale.over(factor), acc, low, high)

    return realize


def exact_factor(windows: np.ndarray[Any, Any], bound: int, qconfig: QConfig) -> int:
    """What the data are multiplied with in front of the pool: L.

    With ``requantization`` "power_of_two" the largest power of two that the sum has room for. Else,
    where the mean of the multiplied data would leave the accumulator, the largest power of two that
    does not: the quotient is then truncated that far below the data's step.
    """
    if not qconfig.avg_pool_round:
        return 1
    if qconfig.requantization == "power_of_two":
        room = integer_limits(qconfig.dtype_activation)[1] // max(bound * int(windows.max()), 1)
        return 1 << (max(room, 1).bit_length() - 1)
    factor = math.lcm(*(int(count) for count in np.unique(windows)))
    room = max(integer_limits(qconfig.dtype_activation)[1] // max(bound, 1), 1)
    return factor if factor <= room else 1 << (room.bit_length() - 1)


def average_pool_scale(counts: Counts) -> Callable[..., DomScale | None]:
    """The FQDomScale rule of one pooling operator over a narrow operand."""

    def scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
        if scales[0] is None:
            return None
        narrow = (1 << (qconfig.nbit_input - 1)) - 1
        return scales[0].over(exact_factor(counts(call), narrow, qconfig))

    return scale
