"""Bounds on every value of quantized_main, for any input, from the weights that are really there.

    %0 = nn.conv2d(%input, W)    per output channel: sum of w * (its input's bound with w's sign)
    %1 = add(%0, B)              bounds add up, channel by channel
    %2 = cast(%1, int8)          must fit, or the value may wrap

Every accumulator is bounded for partial sums in any order, and every intermediate that an operator
computes inside (the 64-bit product of a fixed-point multiplication, the sum of a pool) has its own
bound. What may leave its dtype is a finding that names node, channel and bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from compiler.core.legalize import forget, words_of
from compiler.ir.dataflow import Dataflow, Step, Value, dataflow
from compiler.ir.module import IRModule
from compiler.ir.op import OpRule
from compiler.ir.ty import integer_range, is_float, is_integer
from compiler.proof.finding import Finding
from compiler.proof.interval import Bound, Interval, constant_interval, interval_of
from compiler.proof.reals import ANYTHING, Ends, constant_ends, real_ends
from compiler.proof.wiring import CORE, PREFIX, SUFFIX


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What is known of one value.

    Attributes:
        name: ``%7`` as ``qsearch show`` numbers it, a parameter's name, or ``constant 3``.
        op: what computes it; "" for parameters and constants.
        dtype, shape: of the tensor.
        low, high: bounds over all elements.
        reads: names of the operands, in order.
        attrs: attributes of the operator.
    """

    name: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    low: int
    high: int
    reads: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Ranges:
    """Every integer value of a function with its bounds, what is computed between them, what may
    overflow, and the bounds of the function's results: None for a float."""

    values: tuple[ValueRange, ...]
    intermediates: tuple[Intermediate, ...]
    findings: tuple[Finding, ...]
    outputs: tuple[Interval | None, ...]


class RangeContext:
    """What a range rule sees: bounds of operands, and where to report what may not fit."""

    def __init__(self, names: Mapping[Value, str], place: str) -> None:
        self._names = names
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
            if value.data is None:
                low, high = dtype_range(value.type.dtype)
                held = constant_interval(low, high, len(value.type.shape))
            else:
                held = interval_of(value.data)
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
        """Record the bounds of a value; an axis is 1 long or as long as the tensor's."""
        self._known[value] = bounds.shaped_for(value.type.concrete_shape)

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
            Intermediate(self._node(step), what, dtype, bounds.lowest, bounds.highest)
        )
        return self.result_fits(step, what, bounds, dtype)

    def result_fits(self, step: Step, what: str, bounds: Interval, dtype: str) -> bool:
        """``fits`` for what is recorded as a value anyway."""
        low, high = dtype_range(dtype)
        below, above = bounds.lowest < low, bounds.highest > high
        if not below and not above:
            return True
        reach = bounds.lowest if below and -bounds.lowest >= bounds.highest else bounds.highest
        limit = low if reach < 0 else high
        self.report(
            step,
            f"{what}{_place(bounds, reach)} may reach {reach}, {dtype} ends at {limit}",
            bound=reach,
        )
        return False

    def report(self, step: Step, what: str, bound: int | None = None) -> None:
        """Record a finding about one step."""
        self.findings.append(Finding("ranges", self._node(step), what, bound))

    def _node(self, step: Step) -> str:
        """The operator that the module names, whose word ``step`` is."""
        named = self.operator or step
        return f"{self._place}{self._names.get(named.results[0], '?')} {named.name}"


RangeRule = Callable[[Step, RangeContext], Interval]
"""``rule(step, ctx)``: bounds of the result for all operands within theirs; what the word computes
on the way is checked by ``ctx.fits``, the result itself by the caller."""

FRange: OpRule[RangeRule] = OpRule(
    "FRange", asked_by="proof.ranges", defined_in="compiler/proof/range_rules"
)


_BY_NAME: Final = ("nn.avg_pool2d",)
"""Operators whose bounds their bodies would lose: windows at a border have fewer elements."""


def dtype_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype or bool."""
    return (0, 1) if dtype == "bool" else integer_range(dtype)


def _place(bounds: Interval, reach: int) -> str:
    """Which channel of several reaches the bound."""
    array: Bound = bounds.low if reach < 0 else bounds.high
    long = [axis for axis, size in enumerate(array.shape) if size > 1]
    if not long:
        return ""
    at = np.argwhere(array == reach)[0]
    if len(long) == 1:
        return f" of channel {at[long[0]]}"
    return f" of element {tuple(int(k) for k in at)}"


@dataclass(slots=True)
class _Names:
    """Names of values in the order of the printed text."""

    of: dict[Value, str] = field(default_factory=dict)
    constants: list[Value] = field(default_factory=list)

    def collect(self, flow: Dataflow) -> None:
        for value in flow.inputs:
            self.of[value] = f"%{value.name}"
        for index, step in enumerate(flow.steps):
            for arg in step.args:
                if arg.data is not None and arg not in self.of:
                    self.of[arg] = f"constant {len(self.constants)}"
                    self.constants.append(arg)
            for value in step.results:
                last = f".{value.index}" if len(step.results) > 1 else ""
                self.of[value] = f"%{index}{last}"


def analyse(
    mod: IRModule,
    function: str = CORE,
    inputs: Sequence[Interval | tuple[int, int] | None] | None = None,
) -> Ranges:
    """Bounds of every value of one function.

    Args:
        mod: a typed module.
        function: its name; findings about the conversions say which they are about.
        inputs: bounds of each parameter; None means everything its dtype holds, for a float
            infinities and NaN as well.
    Raises:
        OnnxExportError: control flow, closures or unknown dimensions.
    """
    flow = dataflow(mod, function)
    names = _Names()
    names.collect(flow)
    ctx = RangeContext(names.of, f"@{function}, " if function in (PREFIX, SUFFIX) else "")
    for value, given in zip(flow.inputs, inputs or (), strict=inputs is not None):
        if isinstance(given, Interval):
            ctx.set(value, given)
        elif given is not None:
            ctx.set(value, constant_interval(*given, len(value.type.shape)))
    rows = [_row(value, names.of, ctx) for value in flow.inputs if _whole(value)]
    rows += [_constant_row(value, names.of[value]) for value in names.constants if _whole(value)]
    for step in flow.steps:
        _analyse_step(step, ctx)
        rows += [_row(value, names.of, ctx) for value in step.results if _whole(value)]
    outputs = tuple(ctx.of(value) if _whole(value) else None for value in flow.outputs)
    flow.unlink()
    return Ranges(tuple(rows), tuple(ctx.intermediates), tuple(ctx.findings), outputs)


def value_bounds(flow: Dataflow) -> dict[Value, Interval]:
    """Bounds of every integer that a flow computes or takes; of inputs everything a dtype holds."""
    ctx = RangeContext({}, "")
    for step in flow.steps:
        _analyse_step(step, ctx)
    values = [*flow.inputs, *(value for step in flow.steps for value in step.results)]
    return {value: ctx.of(value) for value in values if _whole(value)}


def _whole(value: Value) -> bool:
    return is_integer(value.type.dtype) or value.type.dtype == "bool"


def _analyse_step(step: Step, ctx: RangeContext) -> None:
    if any(is_float(value.type.dtype) for value in (*step.args, *step.results)):
        # Only around the core: the check of dtypes refuses floats inside.
        ends = None
        if len(step.results) == 1:
            ends = real_ends(step, [ctx.ends_of(value) for value in step.args])
        if ends is not None:
            ctx.set_ends(step.result, ends)
        return
    words, results = words_of(step, _BY_NAME)
    ctx.operator = step
    for word in words:
        _analyse_word(word, ctx)
    for value, made in zip(step.results, results):
        ctx.set(value, ctx.of(made))
    forget(words, step)


def _analyse_word(step: Step, ctx: RangeContext) -> None:
    rule = FRange.get(step.op)
    if rule is None:
        ctx.report(step, "no range rule is known for this operator, so nothing can be proved of it")
        return
    before = len(ctx.findings)
    found = rule(step, ctx)
    if len(ctx.findings) == before and ctx.result_fits(
        step, "its result", found, step.result.type.dtype
    ):
        ctx.set(step.result, found)
    # Otherwise it wraps, and from here on it may be anything its dtype holds.


def _row(value: Value, names: Mapping[Value, str], ctx: RangeContext) -> ValueRange:
    bounds = ctx.of(value)
    step = value.producer
    reads: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    if step is not None:
        reads = tuple(names[arg] for arg in step.args)
        attrs = attr_texts(step.attrs)
    return ValueRange(
        names[value],
        "" if step is None else step.name,
        value.type.dtype,
        value.type.concrete_shape,
        bounds.lowest,
        bounds.highest,
        reads,
        attrs,
    )


def attr_texts(attrs: Any) -> tuple[str, ...]:
    """Attributes as ``name=value``."""
    return () if attrs is None else tuple(f"{key}={value}" for key, value in attrs.items())


def _constant_row(value: Value, name: str) -> ValueRange:
    assert value.data is not None
    data = value.data.reshape(-1)
    low, high = (int(data.min()), int(data.max())) if data.size else (0, 0)
    return ValueRange(name, "", value.type.dtype, value.type.concrete_shape, low, high)
