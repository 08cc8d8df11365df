"""Shifts, which are monotone in the data: the bounds of results are the results of bounds."""

from __future__ import annotations

from itertools import product

from compiler.ir.dataflow import Step
from compiler.ir.ty import bits
from compiler.ranges.analysis import FRange, RangeContext, anything
from compiler.ranges.interval import Interval
from compiler.ranges.rules.arithmetic import corners


@FRange.register("right_shift", "left_shift")
def shift(step: Step, ctx: RangeContext) -> Interval:
    """x >> n or x << n at the extremes of both."""
    data, amount = (ctx.of(v) for v in step.args)
    width = bits(step.result.type.dtype)
    if amount.lowest < 0 or amount.highest >= width:
        ctx.report(
            step,
            f"shifts by {amount.lowest} to {amount.highest} bits, legal are 0 to {width - 1}",
            bound=amount.highest,
        )
        return anything(step.result)
    pairs = product((data.low, data.high), (amount.low, amount.high))
    if step.name == "right_shift":
        return corners([x >> n for x, n in pairs])
    return corners([x << n for x, n in pairs])
