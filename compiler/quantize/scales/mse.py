"""calibrate_mode "mse": the range with the least squared quantization error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.stats import TensorStats
from compiler.quantize.scales.modes import calibrate_modes, two_sided_modes

_STEPS = 200
"""Thresholds tried: max|x| * j / 200, j = 1 … 200, and the one with max|x| on the last level."""

_FEW_VALUES = 256
"""Up to so many different magnitudes max|x| is tried on other levels, too: the values of an image
may then all lie on levels."""

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
    if filled.size <= _FEW_VALUES:
        ends = np.arange(2 ** (nbit - 2), 2 ** (nbit - 1) - 1)
        thresholds = np.append(thresholds, largest * 2 ** (nbit - 1) / ends)
    step = (thresholds / 2 ** (nbit - 1))[:, None]
    error = np.minimum(np.floor(centre / step + 0.5), 2 ** (nbit - 1) - 1)
    error *= step
    error -= centre
    error *= error
    return np.float32(thresholds[int(np.argmin(error @ counts))])


@calibrate_modes.register("mse")
def mse_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """The range S with the least squared error; max|x| for grids finer than the histogram.

    Raises:
        CalibrationError: there is no histogram.
    """
    hist = stats.histogram()
    if nbit >= _NOTHING_TO_CLIP or stats.largest == 0:
        return stats.largest
    return mse_threshold(hist, float(stats.largest), nbit)


_SHARES = np.linspace(0.2, 1.0, 41)
_FINE_SHARES = np.linspace(-0.03, 0.03, 13)


def mse_ends(
    hist: NDArray[np.int64], low: float, high: float, nbit: int
) -> tuple[np.float32, np.float32]:
    """Ends of the range whose 2^nbit levels, one of them exactly 0, err least.

    Both ends move in by the same share first, then each by itself, in turns.

    Args:
        hist: counts of an odd number of bins over [-max|x|, max|x|].
        low: smallest value, < 0.
        high: largest value, >= 0.
        nbit: bits of the grid.
    Source: the search of ``mse_threshold``, with the grid of Jacob et al., 2018.
    """
    half = hist.size // 2
    filled = np.flatnonzero(hist)
    centre = (filled - half) * (2.0 * max(-low, high) / hist.size)
    counts = hist[filled].astype(np.float64)

    def best_of(lows: NDArray[Any], highs: NDArray[Any]) -> int:
        return int(np.argmin([_error(centre, counts, a, b, nbit) for a, b in zip(lows, highs)]))

    chosen = best_of(low * _SHARES, high * _SHARES)
    shares = np.full(2, _SHARES[chosen])
    for steps in (_SHARES, _FINE_SHARES):
        for end in (0, 1):
            around = shares[end] + steps if steps is _FINE_SHARES else steps
            tried = np.clip(np.append(around, shares[end]), 0.01, 1.0)
            pairs = np.tile(shares, (tried.size, 1))
            pairs[:, end] = tried
            shares = pairs[best_of(low * pairs[:, 0], high * pairs[:, 1])]
    return np.float32(low * shares[0]), np.float32(high * shares[1])


def _error(centre: NDArray[Any], counts: NDArray[Any], low: float, high: float, nbit: int) -> float:
    levels = 2**nbit - 1
    step = (high - low) / levels
    zero = np.floor(-low / step + 0.5)
    held = np.clip(np.floor(centre / step + 0.5), -zero, levels - zero)
    held *= step
    held -= centre
    return float((held * held) @ counts)


@two_sided_modes.register("mse")
def mse_two_sided(stats: TensorStats, qconfig: QConfig, nbit: int) -> tuple[float, float]:
    """The ends with the least squared error; the extremes for grids finer than the histogram.

    Raises:
        CalibrationError: there is no histogram.
    """
    hist = stats.histogram()
    low = min(float(stats.minimum), 0.0)
    high = max(float(stats.maximum), 0.0)
    if nbit >= _NOTHING_TO_CLIP or low == high:
        return low, high
    found = mse_ends(hist, low, high, nbit)
    return float(found[0]), float(found[1])
