"""Tables, softmax and standardisation: bounded by their definitions."""

from __future__ import annotations

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.nn.integer_standardize import output_bound
from compiler.proof.interval import Interval, constant_interval, exact
from compiler.proof.ranges import FRange, RangeContext


@FRange.register("lookup")
def lookup(step: Step, ctx: RangeContext) -> Interval:
    """Between the least and the greatest entry that the operand's bounds reach."""
    rank = len(step.result.type.shape)
    table = step.args[1].data
    if table is None:
        return ctx.of(step.args[1]).scalar(rank)
    source = ctx.of(step.args[0])
    lowest, last = integer_range(step.args[0].type.dtype)[0], table.size - 1
    first, end = (min(max(b - lowest, 0), last) for b in (source.lowest, source.highest))
    reached = table[first : end + 1]
    return constant_interval(int(reached.min()), int(reached.max()), rank)


@FRange.register("nn.integer_softmax")
def integer_softmax(step: Step, ctx: RangeContext) -> Interval:
    """Entries lie between 0 and their sum; the sum of a row is kept in 32 bits."""
    rank = len(step.result.type.shape)
    count = step.result.type.concrete_shape[step.attrs.axis]
    largest = max(ctx.of(step.args[1]).highest, 0)
    total = constant_interval(0, count * largest, rank)
    ctx.fits(step, f"the sum of {count} exponentials", total, "int32")
    dividend = (largest << (step.attrs.out_bits + 1)) + count * largest
    ctx.fits(step, "the dividend", constant_interval(0, dividend, rank), "int64")
    return constant_interval(0, 1 << step.attrs.out_bits, rank)


@FRange.register("nn.integer_standardize")
def integer_standardize(step: Step, ctx: RangeContext) -> Interval:
    """|out| is at most sqrt(N) for any data; its sums must fit in 62 bits."""
    attrs, rank = step.attrs, len(step.result.type.shape)
    count = step.result.type.concrete_shape[attrs.axis]
    data = ctx.of(step.args[0])
    squares = count * count * data.magnitude**2 + attrs.epsilon
    # Two bits less than int64 holds: the root is corrected by squaring its neighbour.
    radicand = constant_interval(0, squares << (2 * attrs.root_bits + 1), rank)
    ctx.fits(step, "twice the radicand", radicand, "int64")
    dividend = 2 * count * data.magnitude << (attrs.out_bits + attrs.root_bits + 2)
    ctx.fits(step, "twice the dividend", constant_interval(0, dividend, rank), "int64")
    bound = output_bound(count, attrs.out_bits)
    return Interval(exact([-bound]).reshape((1,) * rank), exact([bound]).reshape((1,) * rank))
