"""Metrics of language models: bits of a token, and perplexity, both negative.

-log2 p(label) is averaged over the tokens whose label is not negative; perplexity is 2 to that
power (Jelinek et al., "Perplexity, a measure of the difficulty of speech recognition tasks", 1977).
Where a token is a character, its bits are bits per character.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from workers.metrics.library import Ratio, classes
from workers.metrics.protocol import Outputs, State


class Bits(Ratio):
    """Negative mean bits of a token."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Add the bits of some samples.

        Raises:
            ValueError: the first output is not of shape (samples, [tokens,] vocabulary).
        """
        wanted = classes(labels)
        logits = np.asarray(outputs[0], np.float64)
        if logits.shape[:-1] != wanted.shape:
            raise ValueError(f"labels of shape {wanted.shape} for logits of shape {logits.shape}")
        kept = wanted >= 0
        chances = log_softmax(logits, axis=-1)
        own = np.take_along_axis(chances, np.where(kept, wanted, 0)[..., None], -1)[..., 0]
        bits = np.where(kept, own / math.log(2), 0.0).reshape(len(wanted), -1).sum(axis=1)
        tokens = kept.reshape(len(wanted), -1).sum(axis=1).astype(np.float64)
        self.add(state, bits, tokens)


class Perplexity(Bits):
    """Negative perplexity."""

    def result(self, state: Mapping[str, float]) -> float | None:
        bits = super().result(state)
        return None if bits is None or -bits > 1000 else -(2.0**-bits)

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        value = self.result(state)
        error = super().standard_error(state)
        if value is None or error is None:
            return None
        return -value * math.log(2) * error


bits = Bits()
perplexity = Perplexity()
