"""The calibrate_mode table, and the scales that a mode gives to all quantize points of a module.

A mode answers with S, the real-valued range [-S, S] that one tensor is quantized over. To add one:
write a function under ``@calibrate_modes.register(name)``, in a module of your own or in a file
beside this one that ``activation_scales.py`` imports.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from compiler.errors import CalibrationError
from compiler.named_table import NamedTable
from compiler.qtypes.config_checks import allow_calibrate_mode
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.stats import TensorStats, flat_float32, percentile_rank

CalibrateMode = Callable[[TensorStats, QConfig, int], np.float32]
"""``mode(stats, qconfig, nbit) -> S >= 0`` in the units of the tensor; nbit of the point's kind."""


class _CalibrateModes(NamedTable[CalibrateMode]):
    """A registered name is one that ``QConfig.calibrate_mode`` takes."""

    def register(self, name: str) -> Callable[[CalibrateMode], CalibrateMode]:
        allow_calibrate_mode(name)
        return super().register(name)


calibrate_modes: NamedTable[CalibrateMode] = _CalibrateModes("calibrate_mode", ConfigValueError)

TwoSidedMode = Callable[[TensorStats, QConfig, int], tuple[float, float]]
"""``mode(stats, qconfig, nbit) -> (low, high)`` with low <= 0 <= high, for tensors that have a zero
point. A calibrate_mode without one gives its range [-S, S] cut at the extremes that were seen."""

two_sided_modes: NamedTable[TwoSidedMode] = NamedTable("calibrate_mode", ConfigValueError)


def two_sided_range(
    stats: TensorStats, qconfig: QConfig, nbit: int, threshold: float
) -> tuple[float, float]:
    """(low, high), low <= 0 <= high, in the units of the tensor.

    Args:
        threshold: what the calibrate_mode answers.
    """
    if qconfig.calibrate_mode in two_sided_modes.names():
        return two_sided_modes.require(qconfig.calibrate_mode)(stats, qconfig, nbit)
    low = min(float(stats.minimum), 0.0)
    high = max(float(stats.maximum), 0.0)
    return max(low, -threshold), min(high, threshold)


@calibrate_modes.register("global_scale")
def global_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """``qconfig.global_scale``, for every tensor."""
    return np.float32(qconfig.global_scale)


@calibrate_modes.register("max")
def max_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """max|x|."""
    return stats.largest


def find_scale_by_percentile(arr: ArrayLike, percentile: float = 0.99999) -> np.float32:
    """The k-th smallest |x|, k = int(len * percentile), 0-based, at most the largest.

    Args:
        arr: every value of one tensor over the calibration set, at least one; taken as float32.
        percentile: fraction in (0, 1].
    Returns:
        Threshold in the units of the samples; 0 when all of them up to rank k are.
    Raises:
        CalibrationError: samples are empty or not finite, or the fraction is out of range.
    Source: Relay v0.10 quantize/_calibrate.py.
    """
    if not 0 < percentile <= 1:
        raise CalibrationError(f"percentile {percentile} is not in (0, 1]")
    magnitude = np.abs(flat_float32(arr))
    rank = percentile_rank(magnitude.size, percentile)
    return np.float32(np.partition(magnitude, rank)[rank])


@calibrate_modes.register("percentile")
def percentile_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """Smallest range that holds the fraction ``qconfig.percentile`` of |x|.

    Raises:
        CalibrationError: this percentile was not collected.
    """
    return stats.order_statistic(percentile_rank(stats.count, qconfig.percentile))
