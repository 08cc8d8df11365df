"""Bounds of every integer of a flow, word by word: what a range rule sees, and the table of rules.

    %0 = nn.conv2d(%input, W)    per output channel: sum of w * (its input's bound with w's sign)
    %1 = add(%0, B)              bounds add up, channel by channel
    %2 = cast(%1, int8)          must fit, or the value may wrap

Every accumulator is bounded for partial sums in any order, and every intermediate that an operator
computes inside (the 64-bit product of a fixed-point multiplication, the sum of a pool) has its own
bound. What may leave its dtype is a finding that names node, channel and bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from compiler.at_work import at_work
from compiler.core.legalize import forget, is_whole, words_of
from compiler.ir.dataflow import Dataflow, Step, Value, values_of
from compiler.ir.op import OpRule
from compiler.ir.ty import integer_range, is_float
from compiler.ranges.finding import Finding
from compiler.ranges.interval import Bound, Interval, constant_interval, interval
from compiler.ranges.reals import ANYTHING, Ends, constant_ends, real_ends


@dataclass(frozen=True, slots=True)
class Intermediate:
    """A number that an operator computes on its way: an accumulator, a 64-bit product.

    Attributes:
        node: number and name of the operator.
        what: the quantity.
        dtype: what it must fit into.
        low, high: its bounds; for an accumulator the bounds of every partial sum, in any order.
    """

    node: str
    what: str
    dtype: str
    low: int
    high: int

    @property
    def share(self) -> float:
        """The part of the dtype's range that may be used; above 1 it overflows."""
        low, high = dtype_range(self.dtype)
        return max(self.high / high, self.low / low if low else 0.0)


class RangeContext:
    """Bounds of operands for a range rule, and the place to report values that may not fit."""

    def __init__(self, names: Mapping[Value, str] | None = None, place: str = "") -> None:
        self._names = names or {}
        self._place = place
        self._known: dict[Value, Interval] = {}
        self._reals: dict[Value, Ends] = {}
        self.operator: Step | None = None
        self.findings: list[Finding] = []
        self.intermediates: list[Intermediate] = []

    def of(self, value: Value) -> Interval:
        """Bounds of a value that has been computed before, or of a constant."""
        held = self._known.get(value)
        if held is None:
            known = value.data is not None
            if known:
                held = interval(value.data, value.data)
            else:
                held = anything(value)
            self._known[value] = held
        return held

    def ends_of(self, value: Value) -> Ends:
        """Lowest and highest value of a tensor, float or not."""
        if not is_float(value.type.dtype):
            bounds = self.of(value)
            return bounds.lowest, bounds.highest
        if value.data is not None:
            return constant_ends(value)
        return self._reals.get(value, ANYTHING)

    def set(self, value: Value, bounds: Interval) -> None:
        """Record the bounds of a value; an axis is 1 long or as long as the tensor's.

        A tensor without elements has one pair, for its long axes would be broadcast all the same.
        """
        shape = value.type.concrete_shape
        empty = 0 in shape
        self._known[value] = bounds.scalar(len(shape)) if empty else bounds.shaped_for(shape)

    def set_ends(self, value: Value, ends: Ends) -> None:
        """Record the same bounds for all elements of a tensor, float or not."""
        if is_float(value.type.dtype):
            self._reals[value] = ends
        else:
            self.set(value, constant_interval(int(ends[0]), int(ends[1]), 0))

    def fits(self, step: Step, what: str, bounds: Interval, dtype: str) -> bool:
        """Record an intermediate; True when its bounds lie inside ``dtype``, else it is a finding.

        Args:
            what: the quantity, such as "the accumulator".
        """
        self.intermediates.append(
            Intermediate(self.name_of(step), what, dtype, bounds.lowest, bounds.highest)
        )
        return self.result_fits(step, what, bounds, dtype)

    def result_fits(self, step: Step, what: str, bounds: Interval, dtype: str) -> bool:
        """``fits`` for what is recorded as a value anyway."""
        low, high = dtype_range(dtype)
        below = bounds.lowest < low
        above = bounds.highest > high
        if not below and not above:
            return True
        if below and -bounds.lowest >= bounds.highest:
            reach = bounds.lowest
        else:
            reach = bounds.highest
        limit = low if reach < 0 else high
        self.report(
            step,
            f"{what}{_place(bounds, reach)} may reach {reach}, {dtype} ends at {limit}",
            bound=reach,
        )
        return False

    def report(self, step: Step, what: str, bound: int | None = None) -> None:
        """Record a finding about one step."""
        self.findings.append(Finding("ranges", self.name_of(step), what, bound))

    def name_of(self, step: Step) -> str:
        """The operator that the module names, whose word ``step`` is."""
        named = self.operator or step
        name = self._names.get(named.results[0])
        if name:
            return f"{self._place}{name} {named.name}"
        return named.name


RangeRule = Callable[[Step, RangeContext], Interval]
"""``rule(step, ctx)``: bounds of the result for all operands within theirs; what the word computes
on the way is checked by ``ctx.fits``, the result itself by the caller."""

FRange: OpRule[RangeRule] = OpRule(
    "FRange", asked_by="ranges.analysis", defined_in="compiler/ranges/rules.py"
)


BY_NAME: Final = ("nn.avg_pool2d",)
"""Operators whose bounds their bodies would lose: windows at a border have fewer elements."""


def dtype_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype or bool."""
    if dtype == "bool":
        return (0, 1)
    return integer_range(dtype)


def anything(value: Value) -> Interval:
    """All that the dtype of a value holds."""
    return constant_interval(*dtype_range(value.type.dtype), len(value.type.shape))


def _place(bounds: Interval, reach: int) -> str:
    """Name the channel of several that reaches the bound."""
    array: Bound = bounds.low if reach < 0 else bounds.high
    long = [axis for axis, size in enumerate(array.shape) if size > 1]
    if not long:
        return ""
    at = np.argwhere(array == reach)[0]
    if len(long) == 1:
        return f" of channel {at[long[0]]}"
    return f" of element {tuple(int(k) for k in at)}"


def ranges_of(flow: Dataflow) -> RangeContext:
    """Return the bounds of the values of a flow."""
    ctx = RangeContext()
    for step in flow.steps:
        analyse_step(step, ctx)
    return ctx


def value_bounds(flow: Dataflow) -> dict[Value, Interval]:
    """Bounds of every integer that a flow computes or takes, in the bodies of loops as well; of
    inputs everything a dtype holds."""
    ctx = ranges_of(flow)
    return {value: ctx.of(value) for value in values_of(flow) if is_whole(value)}


def analyse_step(step: Step, ctx: RangeContext) -> None:
    """Record the bounds of what a step computes."""
    at_work(ctx.name_of, step)
    if any(is_float(value.type.dtype) for value in (*step.args, *step.results)):
        # Only around the core: the check of dtypes refuses floats inside.
        ends = None
        if len(step.results) == 1:
            ends = real_ends(step, [ctx.ends_of(value) for value in step.args])
        if ends is not None:
            ctx.set_ends(step.result, ends)
        return
    words, results = words_of(step, BY_NAME)
    ctx.operator = step
    for word in words:
        analyse_word(word, ctx)
    for value, made in zip(step.results, results):
        ctx.set(value, ctx.of(made))
    forget(words, step)


def _analyse_loop(step: Step, body: Dataflow, ctx: RangeContext) -> None:
    """Record bounds that hold in every step of a scan, however many there are.

    What the body makes of any state at all, joined with the first state, holds all states: what it
    makes of these lies within. A state that nothing limits is anything its dtype holds, and what
    may overflow then is a finding.
    """
    states, moving = step.attrs.borders(len(body.outputs))
    for place, (value, arg) in enumerate(zip(body.inputs, step.args, strict=True)):
        held = ctx.of(arg)
        if place < states:
            held = anything(value)
        elif place < moving:
            held = held.along([0])
            held = Interval(held.low[0, ...], held.high[0, ...])
        ctx.set(value, held)
    whole = ctx.findings[:], ctx.intermediates[:]
    for inner in body.steps:
        analyse_step(inner, ctx)
    ctx.findings[:], ctx.intermediates[:] = whole
    for value, arg, made in zip(body.inputs, step.args, body.outputs[:states]):
        ctx.set(value, ctx.of(arg).union(ctx.of(made)))
    for inner in body.steps:
        analyse_step(inner, ctx)
    for place, (value, made) in enumerate(zip(step.results, body.outputs, strict=True)):
        found = ctx.of(made)
        if place >= states:
            found = Interval(found.low[None], found.high[None])
        ctx.set(value, found)


def analyse_word(step: Step, ctx: RangeContext) -> bool:
    """Record the bounds of a word; False where it may wrap, and be anything its dtype holds."""
    if step.body is not None:
        _analyse_loop(step, step.body, ctx)
        return True
    rule = FRange.get(step.op)
    if rule is None:
        ctx.report(step, "no range rule is known for this operator, so nothing can be proved of it")
        return False
    before = len(ctx.findings)
    found = rule(step, ctx)
    if len(ctx.findings) == before and ctx.result_fits(
        step, "its result", found, step.result.type.dtype
    ):
        ctx.set(step.result, found)
        return True
    return False
