"""QuantizeContext: the state of one quantization run, handed to every rule of that run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compiler.ir.expr import Call, Expr, is_op_call
from compiler.qtypes.channel_ranges import ChannelRanges, Rounding
from compiler.qtypes.input_sample import InputSample
from compiler.qtypes.qconfig import QConfig, current_qconfig
from compiler.qtypes.report import QuantizeReport

BoundsOf = Callable[[Expr], tuple[int, int]]
"""Lowest and highest element of integers, or of what is held in float32 still, for any input."""


def _no_bounds(data: Expr) -> tuple[int, int]:
    raise AssertionError("QuantizeRealize knows bounds, while it runs")


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """QuantizeAnnotate finds these values in a float function before it asks the rules.

    Attributes:
        wide_values: values of the residual stream, which keep 16 bits.
        stored_sums: sums whose sides are rounded to 8 bits first.
        tied_tables: constants that indices pick from and that are weights of layers.
        float_layers: layers that QConfig.layers leaves in float.
        masks: values that may hold minus infinity on the way to a softmax (``mask_values``).
        narrow_moves: moves whose accumulators are narrowed in front of them instead of behind.
    """

    wide_values: frozenset[Expr] = frozenset()
    stored_sums: frozenset[Expr] = frozenset()
    tied_tables: frozenset[Expr] = frozenset()
    float_layers: frozenset[Expr] = frozenset()
    masks: frozenset[Expr] = frozenset()
    narrow_moves: frozenset[Expr] = frozenset()


@dataclass(frozen=True, slots=True)
class QuantizeContext:
    """One run: its QConfig, the simulated_quantize nodes made so far, counters and the report.

    Two runs share nothing, so trials may go on side by side. Rules add to ``qnode_map``,
    ``integer_masks``, ``truncated`` and ``report``, ask ``check_to_skip`` and may ``stop``; all
    else they only read. A step that finds more hands on a copy (``dataclasses.replace``).

    Attributes:
        qconfig: the choices of the run; the current one unless given.
        qnode_map: (data, kind, bits) → simulated_quantize call.
        conv2d_counter: nn.conv2d calls seen by the annotate rules.
        stopped: an nn.global_avg_pool2d has ended quantization.
        integer_masks: comparisons that will compare integers.
        facts: what QuantizeAnnotate found in its function.
        channel_ranges: data of each weighted operator in visiting order, where the QConfig asks
            for them.
        input_sample: some of the calibration inputs, where the QConfig asks for them.
        corrects_biases: biases make up for the mean error of weights where the QConfig says so.
        rounded: what rounding of weights has found; what is given in front of the run is taken as
            it is, and nothing is fitted to it.
        truncated: simulated_quantize call → what shifts without rounding lose there
            (``lost_by_truncation``), once realised.
        bounds_of: of expressions that are being realised.
        reach: values of the simulated module → the magnitude beyond which no reader distinguishes
            them, in real units; absent where nothing limits them.
        report: what stays float and why, and the scales chosen.
    """

    qconfig: QConfig = field(default_factory=current_qconfig)
    qnode_map: dict[tuple[Expr, int, int | None], Call] = field(default_factory=dict)
    conv2d_counter: int = 0
    stopped: bool = False
    integer_masks: set[Expr] = field(default_factory=set)
    facts: GraphFacts = GraphFacts()
    channel_ranges: tuple[ChannelRanges, ...] = ()
    input_sample: InputSample | None = None
    corrects_biases: bool = True
    rounded: Rounding = field(default_factory=Rounding)
    truncated: dict[Expr, Any] = field(default_factory=dict)
    bounds_of: BoundsOf = _no_bounds
    reach: Mapping[Expr, float] = field(default_factory=dict)
    report: QuantizeReport = field(default_factory=QuantizeReport)

    def reach_of(self, value: Expr) -> float:
        """Return the magnitude beyond which no reader distinguishes a value, in real units."""
        return self.reach.get(value, math.inf)

    def check_to_skip(self, call: Call) -> bool:
        """True when the annotate rule of this call must decline; counts convolutions on the way.

        A convolution is counted once per question, and only while quantization has not stopped.
        """
        if self.stopped:
            return True
        if call in self.facts.float_layers:
            self._count(is_op_call(call, "nn.conv2d"))
            return True
        skipped = self.qconfig.skip_conv_layers
        if skipped is not None and is_op_call(call, "nn.conv2d"):
            self._count(1)
            return self.conv2d_counter - 1 in skipped
        return False

    def _count(self, convolutions: int) -> None:
        object.__setattr__(self, "conv2d_counter", self.conv2d_counter + convolutions)

    def stop(self) -> None:
        """End quantization for all calls whose annotate rules are asked later."""
        object.__setattr__(self, "stopped", True)
