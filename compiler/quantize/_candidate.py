"""One trial's module, from a module that all trials share and ranges that are measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import compiler.passes.fold_constant  # noqa: F401  (named below)
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.qtypes.report import QuantizeReport
from compiler.quantize._cost import ModuleCost, module_cost
from compiler.quantize._flow import REQUIRED, partitioned
from compiler.quantize._given_points import for_given_points
from compiler.quantize._integer_products import refuse_integer_products
from compiler.quantize._layers import begin_report
from compiler.quantize._recognize import recognized
from compiler.quantize._rescaling import rescaled
from compiler.quantize._truncation import truncating
from compiler.quantize.calibration.bind_scales import bind_scales
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.correct_rounding import corrected
from compiler.quantize.quantize_annotate import QuantizeAnnotate
from compiler.quantize.quantize_partition import QuantizePartition
from compiler.quantize.quantize_realize import QuantizeRealize


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """What one QConfig makes of a module.

    Attributes:
        simulated: float32 arithmetic with bound simulated_quantize points; without
            round_for_shift, points truncate where the integers do.
        integer: realised and folded; None with do_simulation.
        partitioned: ``integer`` cut by partition_conversions; None where that is "disabled".
        context: the run.
        report: what stays float, and every scale.
    """

    simulated: IRModule
    integer: IRModule | None
    partitioned: IRModule | None
    context: QuantizeContext
    report: QuantizeReport

    @property
    def cost(self) -> ModuleCost:
        """Bytes of its weights, packed, and its bit operations."""
        return module_cost(self.simulated, self.context.qconfig)


def mark(
    mod: IRModule, qconfig: QConfig, channels: ChannelStats | None = None
) -> tuple[IRModule, QuantizeContext]:
    """Partition and annotate a module that ``prerequisite_optimize`` has prepared.

    Args:
        channels: statistics of ``mod`` channel by channel, where ``qconfig.needs_channels``.

    Returns:
        the annotated module, whose quantize points await their scales, and the run.

    Raises:
        CalibrationError: ``channels`` are missing or of another module.
        QuantizeError: layers of the module multiply integers already.
    """
    refuse_integer_products(mod)
    run = QuantizeContext(for_given_points(mod, qconfig))
    mod, run.channel_ranges = rescaled(mod, qconfig, channels)
    mod = recognized(mod, qconfig)
    begin_report(run, mod["main"])
    with PassContext.current().inner(opt_level=3, required_pass=REQUIRED):
        return Sequential([QuantizePartition(run), QuantizeAnnotate(run)], name="mark")(mod), run


@collector_rests
def build_candidate(
    mod: IRModule,
    qconfig: QConfig,
    activation_scales: Sequence[float] | NDArray[np.float32] | None,
    channels: ChannelStats | None = None,
) -> Candidate:
    """The simulated and the integer module of one QConfig.

    Args:
        mod: result of ``prerequisite_optimize``.
        activation_scales: range S of each INPUT or ACTIVATION point in binding order, in the units
            of its tensor; None stands for ``global_scale``.
        channels: statistics of ``mod`` channel by channel, where ``qconfig.needs_channels``.

    Raises:
        CalibrationError: the ranges do not belong to this module and QConfig.
        NotFullyIntegralError: "fully_integral" was asked for and float is left.
        IntegerOverflowError: a sum may leave its dtype.
    """
    annotated, run = mark(mod, qconfig, channels)
    simulated = bind_scales(annotated, run, activation_scales)
    simulated = corrected(simulated, run)
    if qconfig.do_simulation:
        return Candidate(simulated, None, None, run, run.report)
    with PassContext.current().inner(opt_level=3, required_pass=REQUIRED):
        integer = Sequential([QuantizeRealize(run), "FoldConstant"], name="realize")(simulated)
    cut = None if qconfig.partition_conversions == "disabled" else partitioned(integer, qconfig)
    return Candidate(truncating(simulated, run), integer, cut, run, run.report)
