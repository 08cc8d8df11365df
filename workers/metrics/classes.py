"""Metrics of classifiers by scikit-learn: F1 (macro) and the area under the ROC curve.

Where a sample has several classes at once, both are the mean over the classes (macro).
Both are of all samples together: the sums are counts of what was answered, which parts can add.
They have no interval, and early stopping compares SQNR where it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
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
    """Place of an only score: NO and YES in any case, LOW is a yes of a logit and a no of a
    probability; only logits lie BELOW or ABOVE."""

    BELOW = -5
    NO = -4
    LOW = -3
    YES = -2
    ABOVE = -1


class _ByClass(Sums, ABC):
    """Counts of all samples together, or of each class where a sample has several at once."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        wanted = classes(labels)
        output = outputs[0]
        parts = [("", output, wanted.reshape(-1))]
        if output.ndim == 2 and output.shape == wanted.shape and output.shape[1] > 1:
            pairs = zip(output.T.astype(np.float64), wanted.T, strict=True)
            parts = [(f"{place}/", *pair) for place, pair in enumerate(pairs)]
        for prefix, scores, own in parts:
            for key, count in self.counts(scores, own).items():
                state[prefix + key] = state.get(prefix + key, 0.0) + count

    @abstractmethod
    def counts(self, output: NDArray[Any], wanted: NDArray[Any]) -> State:
        """Return how often each answer, or score, has each label."""


class F1(_ByClass):
    """F1 of every class, their mean. An only output is a class from 0 on, or a score: a probability
    where all samples have one from 0 to 1, else a logit; then it is the F1 of the class 1, as
    scikit-learn's default."""

    def counts(self, output: NDArray[Any], wanted: NDArray[Any]) -> State:
        found: State = {}
        count_answers(found, wanted, _classes(output).reshape(-1))
        return found

    def result(self, state: Mapping[str, float]) -> float | None:
        if not state:
            return None
        logits = {f"{band}" for band in (_Band.BELOW, _Band.ABOVE)}
        of_logits = any(key.rpartition(":")[2] in logits for key in state)
        least = _Band.LOW if of_logits else _Band.YES
        scores = []
        for of_class, own in _by_class(state):
            wanted, found, counts = counted_answers(own)
            is_score = (found < 0).any()
            if is_score:
                found = (found >= least).astype(np.int64)
            average = "binary" if of_class or is_score else "macro"
            scores.append(
                f1_score(wanted, found, sample_weight=counts, average=average, zero_division=0)
            )
        return float(np.mean(scores))


class Auc(_ByClass):
    """Area under the ROC curve of two classes: of the last score of a sample."""

    def counts(self, output: NDArray[Any], wanted: NDArray[Any]) -> State:
        if not np.isfinite(output).all():
            raise ValueError("a score is not finite")
        rows = np.asarray(output, np.float64).reshape(len(wanted), -1)
        if rows.shape[1] > 2:
            raise ValueError(f"it is for two classes, and the output has {rows.shape[1]} scores")
        # Of two logits or probabilities the difference orders samples as the second does.
        scores = rows[:, -1] - (rows[:, 0] if rows.shape[1] == 2 else 0.0)
        pairs = zip(scores.tolist(), wanted.tolist(), strict=True)
        return dict(Counter(f"{score.hex()}:{label}" for score, label in pairs if label >= 0))

    def result(self, state: Mapping[str, float]) -> float | None:
        found = []
        for _, own in _by_class(state):
            pairs = [key.split(":") for key in own]
            wanted = [int(label) for _, label in pairs]
            if len(set(wanted)) == 2:
                scores = [float.fromhex(score) for score, _ in pairs]
                found.append(roc_auc_score(wanted, scores, sample_weight=list(own.values())))
        if found:
            return float(np.mean(found))
        return None


def _by_class(state: Mapping[str, float]) -> list[tuple[bool, State]]:
    """Return the counts of each of several classes, or of all samples together."""
    found: dict[str, State] = {}
    for key, count in state.items():
        place, _, pair = key.rpartition("/")
        found.setdefault(place, {})[pair] = count
    return [(bool(place), own) for place, own in found.items()]


def _classes(output: NDArray[Any]) -> NDArray[Any]:
    """Classes of an output: its own, or the highest scores. An only score is told by its band: all
    samples say what it is."""
    rows = output.reshape(len(output), -1)
    if rows.shape[1] == 1 and rows.dtype.kind == "f":
        return np.asarray(np.digitize(rows, _ENDS, right=True) + _Band.BELOW, np.int64)
    return answers(output)


f1 = F1()
auc = Auc()
