"""calibrate_mode "mse": the range with the least squared quantization error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.stats import TensorStats

_STEPS = 200
"""Thresholds tried: max|x| * j / 200, j = 1 … 200, and the one with max|x| on the last level."""

_NOTHING_TO_CLIP = 13
"""From this many bits on a level is finer than a histogram bin, so clipping cannot help."""


def mse_threshold(hist: NDArray[np.int64], largest: float, nbit: int) -> np.float32:
    """Threshold S whose grid (step S / 2^(nbit-1), clipped at 2^(nbit-1) - 1) errs least.

    Args:
        hist: counts of an odd number of bins over [-largest, largest]; a bin's values are taken to
            lie at its centre.
        largest: max|x| > 0.
        nbit: bits of the signed grid.
    Returns:
        Threshold in the units of the samples; the smallest of equals.
    """
    half = hist.size // 2
    counts = hist[half:].astype(np.float64)
    counts[1:] += hist[half - 1 :: -1]
    filled = np.flatnonzero(counts)
    counts = counts[filled]
    centre = filled * (2.0 * largest / hist.size)
    # A grid over max|x| ends one level below it; this one reaches it, with a slightly wider step.
    reaching = largest * 2 ** (nbit - 1) / (2 ** (nbit - 1) - 1)
    thresholds = np.append(largest * np.arange(1, _STEPS + 1) / _STEPS, reaching)
    step = (thresholds / 2 ** (nbit - 1))[:, None]
    error = np.minimum(np.floor(centre / step + 0.5), 2 ** (nbit - 1) - 1)
    error *= step
    error -= centre
    error *= error
    return np.float32(thresholds[int(np.argmin(error @ counts))])


@calibrate_modes.register("mse")
def mse_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """See ``mse_threshold``; max|x| for grids finer than the histogram.

    Raises:
        CalibrationError: there is no histogram.
    """
    if stats.hist is None:
        raise CalibrationError("no histogram was collected", where=stats.label)
    if nbit >= _NOTHING_TO_CLIP or stats.largest == 0:
        return stats.largest
    return mse_threshold(stats.hist, float(stats.largest), nbit)
