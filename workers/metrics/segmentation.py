"""Metric "miou": intersection over union of every class, their mean, by scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from sklearn.metrics import jaccard_score

from workers.metrics.library import Sums, classes, count_answers, counted_answers
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers


class MeanIou(Sums):
    """Over the pixels of all samples whose label is not negative."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count pixels by label and answer.

        Raises:
            ValueError: the output has other sizes than the masks, or fewer classes.
        """
        wanted = classes(labels)
        found = answers(outputs[0])
        if found.shape != wanted.shape:
            raise ValueError(f"masks of shape {wanted.shape} for answers of shape {found.shape}")
        most = outputs[0].shape[1 if outputs[0].ndim >= 4 else -1]
        if outputs[0].ndim > wanted.ndim and wanted.size and wanted.max() >= most:
            raise ValueError(f"a mask holds {wanted.max()}, the model has {most} classes")
        count_answers(state, wanted.reshape(-1), found.reshape(-1))

    def result(self, state: Mapping[str, float]) -> float | None:
        if not state:
            return None
        wanted, found, counts = counted_answers(state)
        return float(jaccard_score(wanted, found, sample_weight=counts, average="macro"))


miou = MeanIou()
