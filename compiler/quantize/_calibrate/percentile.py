"""calibrate_mode "percentile": the smallest range that holds a fraction of |x|."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from compiler.errors import CalibrationError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.stats import TensorStats, flat_float32, percentile_rank


def find_scale_by_percentile(arr: ArrayLike, percentile: float = 0.99999) -> np.float32:
    """The k-th smallest |x|, k = int(len * percentile), 0-based, at most the largest.

    Args:
        arr: every value of one tensor over the calibration set, at least one; taken as float32.
        percentile: fraction in (0, 1].
    Returns:
        Threshold in the units of the samples; 0 when all of them up to rank k are.
    Raises:
        CalibrationError: samples are empty or not finite, or the fraction is out of range.
    Source: Relay v0.10 quantize/_calibrate.py; spec/quantize.md section 6.6.
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
