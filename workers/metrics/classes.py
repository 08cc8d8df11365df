"""Metrics of classifiers by scikit-learn: F1 (macro) and the area under the ROC curve.

Both are of all samples together: the sums are counts of what was answered, which parts can add.
They have no interval, and early stopping compares SQNR where it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score

from workers.metrics.library import Sums, classes, count_answers, counted_answers
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers

_ENDS: Final = (-0.01, 0.0, 0.5, 1.01)
"""Ends of the bands; quantized probabilities may miss 0 and 1 a bit."""


class _Band(IntEnum):
    """Where an only score lies: NO and YES in any case, LOW is a yes of a logit and a no of a
    probability; only logits lie BELOW or ABOVE."""

    BELOW = -5
    NO = -4
    LOW = -3
    YES = -2
    ABOVE = -1


class F1(Sums):
    """F1 of every class, their mean. An only output is a class from 0 on, or a score: a probability
    where all samples have one from 0 to 1, else a logit."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        count_answers(state, classes(labels).reshape(-1), _classes(outputs[0]).reshape(-1))

    def result(self, state: Mapping[str, float]) -> float | None:
        if not state:
            return None
        wanted, found, counts = counted_answers(state)
        if (found < 0).any():
            logits = found.min() == _Band.BELOW or found.max() == _Band.ABOVE
            found = (found >= (_Band.LOW if logits else _Band.YES)).astype(np.int64)
        score = f1_score(wanted, found, sample_weight=counts, average="macro", zero_division=0)
        return float(score)


class Auc(Sums):
    """Area under the ROC curve of two classes: of the last score of a sample."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        wanted = classes(labels).reshape(-1)
        rows = np.asarray(outputs[0], np.float64).reshape(len(wanted), -1)
        if rows.shape[1] > 2:
            raise ValueError(f"it is for two classes, and the output has {rows.shape[1]} scores")
        # Of two logits or probabilities the difference orders samples as the second does.
        scores = rows[:, -1] - (rows[:, 0] if rows.shape[1] == 2 else 0.0)
        if not np.isfinite(scores).all():
            raise ValueError("a score is not finite")
        for score, label in zip(scores.tolist(), wanted.tolist()):
            key = f"{score.hex()}:{label}"
            state[key] = state.get(key, 0.0) + 1.0

    def result(self, state: Mapping[str, float]) -> float | None:
        pairs = [key.split(":") for key in state]
        wanted = [int(label) for _, label in pairs]
        if len(set(wanted)) != 2:
            return None
        scores = [float.fromhex(score) for score, _ in pairs]
        return float(roc_auc_score(wanted, scores, sample_weight=list(state.values())))


def _classes(output: NDArray[Any]) -> NDArray[Any]:
    """Classes of an output: its own, or the highest scores. An only score is told by its band: all
    samples say what it is."""
    rows = output.reshape(len(output), -1)
    if rows.shape[1] == 1 and rows.dtype.kind == "f":
        return np.asarray(np.digitize(rows, _ENDS, right=True) + _Band.BELOW, np.int64)
    return answers(output)


f1, auc = F1(), Auc()
