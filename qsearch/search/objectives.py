"""What a search maximises, and which of two trials is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from qsearch.choices import HARDWARE_METRICS
from qsearch.settings import MaxDrop
from qsearch.store.records import Trial

Score = Mapping[str, float | None]
"""Metric name → value: ``top1`` and ``agreement`` as fractions 0..1, ``sqnr_db`` in dB.

None: ``top1`` is absent without labels; ``sqnr_db`` is infinite (outputs equal the float model's).
With ``--hw`` also ``hw_groups``, ``hw_traffic`` (bytes), ``hw_cycles`` and ``hw_host_calls``.
"""

KEEPS_ACCURACY: Final = "keeps_accuracy"
"""In a score with a cost on hardware: 1.0 where the accuracy stays within ``--max-drop``."""

# Below every cost that a module can have: what loses accuracy ranks behind what keeps it.
_LOST_ACCURACY: Final = -1e18

# Stands for an infinite SQNR where a finite number is needed (Optuna, sorting).
SQNR_CEILING_DB: Final = 400.0
SCORE_KEY: Final = {"top1": "top1", "agreement": "agreement", "sqnr": "sqnr_db"}


def sqnr_value(score: Score) -> float:
    """SQNR in dB as a finite number."""
    sqnr = score.get("sqnr_db")
    return SQNR_CEILING_DB if sqnr is None or math.isinf(sqnr) else float(sqnr)


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric; ties go to agreement, then SQNR, then the earlier trial.

    Accuracy and SQNR are maximised. A cost on hardware is minimised among the modules that keep
    their accuracy; behind them the rest, by accuracy.
    """

    metric: str

    def value(self, score: Score) -> float:
        """The number the sampler sees; greater is better."""
        if self.metric in HARDWARE_METRICS:
            cost = score.get(self.metric)
            if cost is None or not score.get(KEEPS_ACCURACY):
                return _LOST_ACCURACY * (2.0 - accuracy_of(score)[1])
            return -cost
        if self.metric == "sqnr":
            return sqnr_value(score)
        value = score.get(SCORE_KEY.get(self.metric, self.metric))
        return 0.0 if value is None else float(value)

    def shown(self, score: Score) -> float | None:
        """The metric as people read it: a cost as it is, not its negative."""
        if self.metric in HARDWARE_METRICS:
            return score.get(self.metric)
        return self.value(score)

    def rank(self, score: Score, number: int) -> tuple[float, float, float, int]:
        """Greater is better."""
        return (self.value(score), score.get("agreement") or 0.0, sqnr_value(score), -number)

    def best(self, trials: Iterable[Trial]) -> Trial | None:
        """The best complete trial."""
        complete = [t for t in trials if t.state == "complete" and t.outcome.score is not None]
        return max(complete, key=lambda t: self.rank(t.outcome.score or {}, t.number), default=None)


def accuracy_of(score: Score) -> tuple[str, float]:
    """What ``--max-drop`` looks at: top-1 where there are labels, else agreement."""
    top1 = score.get("top1")
    if top1 is not None:
        return "top1", top1
    return "agreement", score.get("agreement") or 0.0


def keeps_accuracy(score: Score, baseline: Score, max_drop: MaxDrop) -> bool:
    """Whether ``score`` stays within ``max_drop`` of the float model."""
    name, value = accuracy_of(score)
    floor = max_drop.floor(float(baseline.get(name) or 0.0))
    # Fractions of a few hundred samples: the last bit of the subtraction must not decide.
    return value >= floor - 1e-9
