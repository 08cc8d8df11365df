"""Metrics by their usual names that well-kept libraries compute; greater is better in all of them.

Each is a file of this folder that is imported when it is asked for, as a metric of a user is: a
function that gives a value per sample, or an object with sums of its own (``protocol.Metric``).
Errors and losses are negative, as scikit-learn's scorers are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workers.metrics.protocol import State

LIBRARY: Final = {
    "f1": "workers.metrics.classes:f1",
    "auc": "workers.metrics.classes:auc",
    "mae": "workers.metrics.regression:mae",
    "rmse": "workers.metrics.regression:rmse",
    "r2": "workers.metrics.regression:r2",
    "map": "workers.metrics.detection:mean_average_precision",
    "miou": "workers.metrics.segmentation:miou",
    "perplexity": "workers.metrics.language:perplexity",
    "bits": "workers.metrics.language:bits",
    "wer": "workers.metrics.speech:wer",
    "cer": "workers.metrics.speech:cer",
    "psnr": "workers.metrics.restored:psnr",
    "ssim": "workers.metrics.restored:ssim",
    "si_sdr": "workers.metrics.restored:si_sdr",
}
"""Word of ``--metric`` → where it is."""

WORDS: Final = {path: word for word, path in LIBRARY.items()}
AGAINST_FLOAT: Final = frozenset({"mae", "rmse"})
"""Metrics that compare with the outputs of the float model where data have no labels."""
SHARES: Final = frozenset({"f1", "auc", "r2", "map", "miou", "ssim"})
"""Those that are at most 1, of which ``--max-drop 0.01`` is a hundredth; of others it is 1 %."""
PACKAGES: Final = ("sklearn", "skimage", "pycocotools", "jiwer")


class Sums:
    """Base of metrics over labels: sums from none on, and no interval where none is given."""

    needs_labels = True
    needs_reference = False

    def init(self) -> State:
        """Sums over no sample."""
        return {}

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """None: it has no interval."""


VALUE: Final = "value"
TOTAL: Final = "total"
_RATIO: Final = (VALUE, TOTAL, "calls", "squares", "products", "counts")
"""Sums of answers that are independent of one another: their totals, for how many samples (tokens,
…) they are, how many answers there are, and for ``standard_error`` the totals squared, totals times
counts, and counts squared."""


class Ratio(Sums):
    """Metrics that are the sum of some totals over the sum of their counts."""

    def init(self) -> State:
        return dict.fromkeys(_RATIO, 0.0)

    def add(self, state: State, totals: NDArray[Any], counts: NDArray[Any]) -> None:
        """Add answers, both float64 of shape (answers,)."""
        sums = (totals.sum(), counts.sum(), len(totals))
        squares = (totals @ totals, totals @ counts, counts @ counts)
        for name, value in zip(_RATIO, (*sums, *squares), strict=True):
            state[name] += float(value)

    def result(self, state: Mapping[str, float]) -> float | None:
        """The ratio; None where nothing was counted."""
        if state[TOTAL]:
            return state[VALUE] / state[TOTAL]
        return None

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """Return the standard error by the delta method on a ratio of two sums; None of fewer than
        two answers."""
        calls = state["calls"]
        mean = Ratio.result(self, state)
        if calls < 2 or mean is None:
            return None
        spread = state["squares"] - 2.0 * mean * state["products"] + mean * mean * state["counts"]
        return math.sqrt(max(spread, 0.0) * calls / (calls - 1.0)) / state[TOTAL]

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """Return the loss of a part."""
        return -state[VALUE]


def count_answers(state: State, wanted: NDArray[Any], found: NDArray[Any]) -> None:
    """Add how often each label got each answer; negative labels do not count."""
    pairs = np.stack([wanted, found], axis=1)
    pairs, counts = np.unique(pairs[wanted >= 0], axis=0, return_counts=True)
    for (label, answer), count in zip(pairs.tolist(), counts.tolist()):
        key = f"{label}:{answer}"
        state[key] = state.get(key, 0.0) + count


def counted_answers(state: Mapping[str, float]) -> tuple[NDArray[Any], NDArray[Any], list[float]]:
    """Labels, answers and how often, of the sums of ``count_answers`` over one sample at least."""
    wanted, found = np.asarray([list(map(int, key.split(":"))) for key in state]).T
    return wanted, found, list(state.values())


def needed(labels: NDArray[Any] | None) -> NDArray[Any]:
    """The labels; raises ValueError where there are none."""
    if labels is None:
        raise ValueError("the data has no labels")
    return labels


def classes(labels: NDArray[Any] | None) -> NDArray[np.int64]:
    """The labels as classes; raises ValueError where one is no whole number."""
    given = needed(labels)
    given = np.where(given == given, given, -1)  # NaN is no label
    found = given.astype(np.int64)
    if (found != given).any():
        raise ValueError("the labels are no classes")
    return found


def flat(
    output: NDArray[Any], labels: NDArray[Any] | None, gaps: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Outputs and labels of the same numbers, as float64 (samples, values).

    Args:
        gaps: NaN stands for no label.
    """
    wanted = np.asarray(needed(labels), np.float64)
    found = np.asarray(output, np.float64)
    if found.size != wanted.size:
        raise ValueError(f"labels of shape {wanted.shape} for outputs of shape {found.shape}")
    if not (np.isfinite(wanted) | (gaps and np.isnan(wanted))).all():
        raise ValueError("a label is not finite")
    return found.reshape(len(wanted), -1), wanted.reshape(len(wanted), -1)
