"""Metric "wer": negative word error rate by jiwer, of tokens that a model of CTC gives.

Labels are ids of tokens, -1 behind the end; each token counts as a word. The answer is the highest
score of every step, repeats merged, then blanks (id 0) left out (Graves et al., "Connectionist
temporal classification", ICML 2006).
"""

from __future__ import annotations

from typing import Any

import jiwer
import numpy as np
from numpy.typing import NDArray

from workers.metrics.library import Ratio, classes
from workers.metrics.protocol import Outputs, State
from workers.metrics.top_k import answers

_BLANK = 0


class WordErrors(Ratio):
    """Negative errors by words of all samples."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        counts = []
        for row, wanted in zip(answers(outputs[0]), classes(labels)):
            merged = row[np.flatnonzero(np.diff(row, prepend=-1))]
            said = " ".join(str(token) for token in merged if token != _BLANK)
            told = " ".join(str(token) for token in wanted if token >= 0)
            if not told:  # jiwer takes no silence
                counts.append((len(said.split()), 0))
                continue
            found = jiwer.process_words(told, said)
            lost = found.substitutions + found.deletions
            counts.append((lost + found.insertions, lost + found.hits))
        errors, words = np.asarray(counts, np.float64).reshape(-1, 2).T
        self.add(state, -errors, words)


wer = cer = WordErrors()
