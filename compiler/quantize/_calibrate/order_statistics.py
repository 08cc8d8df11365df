"""Sparse counters of 16-bit keys: the two halves of a float32 pattern, from which exact order
statistics of |x| follow, because non-negative floats are ordered as their bit patterns are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BucketCounts:
    """How often each 16-bit key occurred.

    Attributes:
        keys: uint16, ascending, each once.
        counts: int64 > 0, same shape.
    """

    keys: NDArray[np.uint16]
    counts: NDArray[np.int64]

    @staticmethod
    def from_dense(counts: NDArray[np.int64]) -> BucketCounts:
        """From a table indexed by key."""
        keys = np.flatnonzero(counts)
        return BucketCounts(keys.astype(np.uint16), counts[keys])

    @staticmethod
    def from_keys(keys: NDArray[np.uint16]) -> BucketCounts:
        """Count every key of a list."""
        found, counts = np.unique(keys, return_counts=True)
        return BucketCounts(found, counts.astype(np.int64))

    @property
    def total(self) -> int:
        """Number of counted values."""
        return int(self.counts.sum())

    def merge(self, other: BucketCounts) -> BucketCounts:
        """Counts of both."""
        keys, place = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        counts = np.zeros(keys.size, np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return BucketCounts(keys, counts)

    def find(self, rank: int) -> tuple[int, int]:
        """Key of the rank-th smallest value, 0-based, and how many values have smaller keys.

        ``rank`` is below ``total``.
        """
        running = np.cumsum(self.counts)
        place = int(np.searchsorted(running, rank, side="right"))
        return int(self.keys[place]), int(running[place] - self.counts[place])


class KeyCounter:
    """Counts keys as they come, in memory bounded by the number of distinct keys."""

    _LIMIT = 1 << 16

    def __init__(self) -> None:
        self._counted = BucketCounts(np.zeros(0, np.uint16), np.zeros(0, np.int64))
        self._pending: list[NDArray[np.uint16]] = []
        self._pending_keys = 0

    def add(self, keys: NDArray[np.uint16]) -> None:
        """Count these keys too."""
        if keys.size:
            self._pending.append(keys)
            self._pending_keys += keys.size
            if self._pending_keys > self._LIMIT:
                self.result()

    def result(self) -> BucketCounts:
        """What was counted so far."""
        if self._pending:
            fresh = BucketCounts.from_keys(np.concatenate(self._pending))
            self._counted = self._counted.merge(fresh)
            self._pending, self._pending_keys = [], 0
        return self._counted
