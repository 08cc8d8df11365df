"""Bounds on every value of quantized_main, for any input, from the weights that are really there.

``compiler.ranges`` finds them, word by word; here they become rows with the names of the printed
text, and findings that name node, channel and bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.core.legalize import is_whole
from compiler.ir.dataflow import Dataflow, Value, dataflow
from compiler.ir.module import IRModule
from compiler.proof.scales import wrong_multipliers
from compiler.proof.wiring import CORE, PREFIX, SUFFIX
from compiler.ranges.analysis import Intermediate, RangeContext, analyse_step
from compiler.ranges.finding import Finding
from compiler.ranges.interval import Interval, constant_interval


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Bounds of one value.

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
class Ranges:
    """Every integer value of a function with its bounds, what is computed between them, what may
    overflow, and the bounds of the function's results: None for a float. Multipliers that are not
    those of their scales are findings of their own; ``scaled`` counts the others and all."""

    values: tuple[ValueRange, ...]
    intermediates: tuple[Intermediate, ...]
    findings: tuple[Finding, ...]
    outputs: tuple[Interval | None, ...]
    multipliers: tuple[Finding, ...]
    scaled: tuple[int, int]


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
        DataflowError: control flow, closures or unknown dimensions.
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
    rows = [_row(value, names.of, ctx) for value in flow.inputs if is_whole(value)]
    rows += [_constant_row(value, names.of[value]) for value in names.constants if is_whole(value)]
    for step in flow.steps:
        analyse_step(step, ctx)
        rows += [_row(value, names.of, ctx) for value in step.results if is_whole(value)]
    outputs = tuple(ctx.of(value) if is_whole(value) else None for value in flow.outputs)
    findings = tuple(ctx.findings)
    ctx.findings = []
    scaled = wrong_multipliers(flow, ctx)
    flow.unlink()
    wrong = tuple(ctx.findings)
    return Ranges(tuple(rows), tuple(ctx.intermediates), findings, outputs, wrong, scaled)


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
    if attrs is None:
        return ()
    return tuple(f"{key}={value}" for key, value in attrs.items())


def _constant_row(value: Value, name: str) -> ValueRange:
    assert value.data is not None
    data = value.data.reshape(-1)
    low, high = (int(data.min()), int(data.max())) if data.size else (0, 0)
    return ValueRange(name, "", value.type.dtype, value.type.concrete_shape, low, high)
