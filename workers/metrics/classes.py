"""Metrics of classifiers by scikit-learn: F1 (macro) and the area under the ROC curve.

Both are of all samples together: the sums are counts of what was answered, which parts can add.
They have no interval, and early stopping compares SQNR where it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score

from workers.metrics.library import needed
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers


class _Counts:
    needs_labels = True
    needs_reference = False

    def init(self) -> State:
        return {}

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """None: it has no interval here."""


class F1(_Counts):
    """F1 of every class, their mean. An only output is a class from 0 on, or a logit."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        wanted = needed(labels).reshape(-1)
        found = _classes(outputs[0]).reshape(-1)
        pairs, counts = np.unique(np.stack([wanted, found], axis=1), axis=0, return_counts=True)
        for (label, answer), count in zip(pairs.tolist(), counts.tolist()):
            key = f"{label}:{answer}"
            state[key] = state.get(key, 0.0) + count

    def result(self, state: Mapping[str, float]) -> float | None:
        if not state:
            return None
        pairs = np.asarray([list(map(int, key.split(":"))) for key in state])
        kept = pairs[:, 0] >= 0
        weights = np.asarray(list(state.values()))[kept]
        wanted, found = pairs[kept].T
        score = f1_score(wanted, found, sample_weight=weights, average="macro", zero_division=0)
        return float(score)


class Auc(_Counts):
    """Area under the ROC curve of two classes: of the last score of a sample."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        wanted = needed(labels).reshape(-1)
        rows = np.asarray(outputs[0], np.float64).reshape(len(wanted), -1)
        if rows.shape[1] > 2:
            raise ValueError(f"it is for two classes, and the output has {rows.shape[1]} scores")
        # Of two logits or probabilities the difference orders samples as the second does.
        scores = rows[:, -1] - (rows[:, 0] if rows.shape[1] == 2 else 0.0)
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
    """Classes of an output: its own, those of logits, or the highest scores."""
    rows = output.reshape(len(output), -1)
    if rows.shape[1] == 1 and rows.dtype.kind == "f":
        return (rows > 0).astype(np.int64)
    return answers(output)


f1, auc = F1(), Auc()
