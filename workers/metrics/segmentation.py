"""Metric "miou": intersection over union of every class, their mean, by scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, jaccard_score

from workers.metrics.library import needed
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers


class MeanIou:
    """Over the pixels of all samples whose label is not negative."""

    needs_labels = True
    needs_reference = False

    def init(self) -> State:
        return {}

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count pixels by label and answer.

        Raises:
            ValueError: the output has other sizes than the masks.
        """
        wanted, found = needed(labels), answers(outputs[0])
        if found.shape != wanted.shape:
            raise ValueError(f"masks of shape {wanted.shape} for answers of shape {found.shape}")
        kept = wanted >= 0
        names = np.unique(np.concatenate([wanted[kept], found[kept]]))
        if not names.size:
            return
        counts = confusion_matrix(wanted[kept], found[kept], labels=names)
        for row, column in zip(*np.nonzero(counts)):
            key = f"{names[row]}:{names[column]}"
            state[key] = state.get(key, 0.0) + float(counts[row, column])

    def result(self, state: Mapping[str, float]) -> float | None:
        if not state:
            return None
        wanted, found = np.asarray([list(map(int, key.split(":"))) for key in state]).T
        weights = list(state.values())
        return float(jaccard_score(wanted, found, sample_weight=weights, average="macro"))

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """None: it has no interval here."""


miou = MeanIou()
