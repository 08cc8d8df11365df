"""Corrections after scales are bound: rounding of weights, then biases."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

from compiler.ir.loops import END
from compiler.ir.module import IRModule
from compiler.ir.walk import mentions
from compiler.qtypes.context import QuantizeContext
from compiler.quantize.scales.range_fitting import RangeFitting
from compiler.quantize.weight_rounding.bias_correction import correct_biases
from compiler.quantize.weight_rounding.sequential_rounding import round_sequentially


def corrected(
    simulated: IRModule, run: QuantizeContext, fitting: RangeFitting | None = None
) -> IRModule:
    """The simulated module with ``weight_rounding`` as the QConfig asks.

    Args:
        simulated: result of ``bind_scales``.
        run: knows the data of the layers where the QConfig needs them (``channel_ranges``);
            otherwise nothing changes.
        fitting: of ranges, for ``weight_rounding`` "sequential".
    """
    cfg = run.qconfig
    ranges = run.channel_ranges
    corrects = run.corrects_biases and cfg.bias_mode == "accumulator"
    if not ranges or cfg.weight_rounding == "nearest":
        return simulated
    if cfg.sequential:
        import scipy.linalg  # noqa: F401  what is loaded later would keep its threads

        # More threads win nothing for matrices of this size and burn several times the CPU; and
        # the last bits of a solution depend on their number.
        with threadpool_limits(1, user_api="blas"):
            simulated = round_sequentially(simulated, run, corrects, fitting)
        corrects &= mentions(simulated["main"], (END,))  # the layers that are left
    if corrects:
        return correct_biases(simulated, ranges)
    return simulated
