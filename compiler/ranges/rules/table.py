"""Tables and roots."""

from __future__ import annotations

import math

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array
from compiler.ranges.analysis import FRange, RangeContext, anything
from compiler.ranges.interval import Interval, constant_interval

_RADICANDS = 1 << 62


@FRange.register("lookup")
def lookup(step: Step, ctx: RangeContext) -> Interval:
    """Between the least and the greatest entry that the operand's bounds reach."""
    rank = len(step.result.type.shape)
    table = step.args[1].data
    if table is None:
        return ctx.of(step.args[1]).scalar(rank)
    source, lowest = ctx.of(step.args[0]), integer_range(step.args[0].type.dtype)[0]
    return entries(table, source.lowest - lowest, source.highest - lowest, rank)


def entries(table: Array, low: int, high: int, rank: int) -> Interval:
    """Bounds of the entries between two places, each limited to the table."""
    first, end = (min(max(place, 0), table.size - 1) for place in (low, high))
    reached = table[first : end + 1]
    return constant_interval(int(reached.min()), int(reached.max()), rank)


@FRange.register("isqrt")
def isqrt(step: Step, ctx: RangeContext) -> Interval:
    """Monotone; of what has 62 bits."""
    source, rank = ctx.of(step.args[0]), len(step.result.type.shape)
    if source.lowest < 0 or source.highest >= _RADICANDS:
        reach = source.lowest if source.lowest < 0 else source.highest
        ctx.report(step, f"its radicand may reach {reach}, legal are 0 to 2^62 - 1", bound=reach)
        return anything(step.result)
    return constant_interval(math.isqrt(source.lowest), math.isqrt(source.highest), rank)
