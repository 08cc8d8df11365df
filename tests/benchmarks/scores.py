"""Top-1, agreement and SQNR of some outputs, with confidence intervals of 95 %."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z = 1.959964
RESAMPLES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Figures per sample; everything else is derived from them.

    Attributes:
        correct, agrees: bool, shape (samples,): the highest output is the label; is the float one.
        signal, noise: float64, shape (samples,): sums of squares of the float outputs, of errors.
    """

    correct: NDArray[np.bool_]
    agrees: NDArray[np.bool_]
    signal: NDArray[np.float64]
    noise: NDArray[np.float64]

    @property
    def top1(self) -> float:
        """Percent."""
        return 100 * float(self.correct.mean())

    @property
    def agreement(self) -> float:
        """Percent."""
        return 100 * float(self.agrees.mean())

    @property
    def sqnr_db(self) -> float:
        """10·log10 of all signal over all noise; inf without noise."""
        return decibels(self.signal.sum(), self.noise.sum())

    def __len__(self) -> int:
        return self.correct.size

    def first(self, count: int) -> Score:
        """The figures of the first samples."""
        parts = (self.correct, self.agrees, self.signal, self.noise)
        return Score(*(part[:count] for part in parts))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with intervals."""
        return {
            "top1": round(self.top1, 2),
            "top1_interval": wilson(self.correct),
            "agreement": round(self.agreement, 2),
            "agreement_interval": wilson(self.agrees),
            "sqnr_db": round(self.sqnr_db, 2) if math.isfinite(self.sqnr_db) else None,
            "sqnr_interval": _sqnr_interval(self) if math.isfinite(self.sqnr_db) else None,
        }


def score(outputs: NDArray[Any], reference: NDArray[Any], labels: NDArray[np.int64]) -> Score:
    """Score outputs of shape (samples, classes) against the float model's."""
    found, wanted = outputs.argmax(1), reference.argmax(1)
    exact = reference.astype(np.float64)
    return Score(
        found == labels,
        found == wanted,
        np.square(exact).sum(1),
        np.square(outputs.astype(np.float64) - exact).sum(1),
    )


def decibels(signal: float, noise: float) -> float:
    """10·log10(signal / noise)."""
    return 10 * math.log10(signal / noise) if noise > 0 else math.inf


def wilson(hits: NDArray[np.bool_]) -> tuple[float, float]:
    """Wilson's score interval of a proportion, in percent."""
    n, p = hits.size, float(hits.mean())
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return round(100 * (middle - half), 2), round(100 * (middle + half), 2)


def margin(ours: Score, theirs: Score) -> dict[str, Any]:
    """Ours minus theirs, resampling the same images for both (bootstrap, seed 0)."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, ours.correct.size, (RESAMPLES, ours.correct.size))
    top1 = 100 * (ours.correct.astype(float) - theirs.correct)
    sqnr = _resampled(ours, picks) - _resampled(theirs, picks)
    return {
        "top1": round(float(top1.mean()), 2),
        "top1_interval": _middle(top1[picks].mean(1)),
        "sqnr_db": round(ours.sqnr_db - theirs.sqnr_db, 2),
        "sqnr_interval": _middle(sqnr),
    }


def _sqnr_interval(scored: Score) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    picks = rng.integers(0, scored.noise.size, (RESAMPLES, scored.noise.size))
    return _middle(_resampled(scored, picks))


def _resampled(scored: Score, picks: NDArray[Any]) -> NDArray[np.float64]:
    noise = np.maximum(scored.noise[picks].sum(1), np.finfo(float).tiny)
    ratios: NDArray[np.float64] = 10 * np.log10(scored.signal[picks].sum(1) / noise)
    return ratios


def _middle(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return round(float(low), 2), round(float(high), 2)
