"""Metric "wer": negative word error rate by jiwer, of tokens that a model of CTC gives.

Labels are ids of tokens, -1 behind the end; each token counts as a word. The answer is the highest
score of every step, repeats merged, then blanks (id 0) left out (Graves et al., "Connectionist
temporal classification", ICML 2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jiwer
import numpy as np
from numpy.typing import NDArray

from workers.metrics.library import Sums, classes
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers

_BLANK = 0


class WordErrors(Sums):
    """Errors and words of all samples."""

    def init(self) -> State:
        return {"errors": 0.0, "words": 0.0}

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        for row, wanted in zip(answers(outputs[0]), classes(labels)):
            merged = row[np.flatnonzero(np.diff(row, prepend=-1))]
            said = " ".join(str(token) for token in merged if token != _BLANK)
            told = " ".join(str(token) for token in wanted if token >= 0)
            if not told:  # jiwer takes no silence
                state["errors"] += len(said.split())
                continue
            found = jiwer.process_words(told, said)
            state["errors"] += found.substitutions + found.deletions + found.insertions
            state["words"] += found.hits + found.substitutions + found.deletions

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """Return the loss of a part."""
        return state["errors"]

    def result(self, state: Mapping[str, float]) -> float | None:
        return -state["errors"] / state["words"] if state["words"] else None


wer = cer = WordErrors()
