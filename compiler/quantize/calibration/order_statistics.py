"""Sparse counters of 16-bit keys: the two halves of a float32 pattern, from which exact order
statistics of |x| follow, because non-negative floats are ordered as their bit patterns are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BucketCounts:
    """Count of each 16-bit key.

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
    def from_entries(keys: NDArray[np.uint16], times: NDArray[Any]) -> BucketCounts:
        """Sum up entries, each a key and how often it occurred; a key may come several times."""
        order = np.argsort(keys, kind="stable")
        running = np.cumsum(times[order], dtype=np.int64)
        if keys.size:
            ends = np.flatnonzero(np.append(np.diff(keys[order]) != 0, True))
        else:
            ends = order
        return BucketCounts(keys[order][ends], np.diff(running[ends], prepend=0))

    def dense(self, size: int) -> NDArray[np.int64]:
        """The table of so many keys, the inverse of ``from_dense``."""
        table = np.zeros(size, np.int64)
        table[self.keys] = self.counts
        return table

    def merge(self, other: BucketCounts) -> BucketCounts:
        """Counts of both."""
        return BucketCounts.from_entries(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.counts, other.counts])
        )

    def find(self, rank: int) -> tuple[int, int]:
        """Key of the rank-th smallest value, 0-based, and how many values have smaller keys.

        ``rank`` is below the number of values.
        """
        running = np.cumsum(self.counts)
        place = int(np.searchsorted(running, rank, side="right"))
        return int(self.keys[place]), int(running[place] - self.counts[place])


class KeyCounter:
    """Counts keys as they come, in memory bounded by the number of distinct keys."""

    _LIMIT = 1 << 16
    _ARRAYS = 64

    def __init__(self) -> None:
        self._counted = BucketCounts(np.zeros(0, np.uint16), np.zeros(0, np.int64))
        self._pending: list[tuple[NDArray[np.uint16], NDArray[Any]]] = []
        self._pending_keys = 0
        self.table: NDArray[np.int64] | None = None

    def dense(self, size: int) -> NDArray[np.int64]:
        """Return a table of so many keys that others count in; ``result`` adds its counts."""
        if self.table is None:
            self.table = np.zeros(size, np.int64)
        return self.table

    def add(self, keys: NDArray[np.uint16], times: NDArray[Any]) -> None:
        """Count these entries too."""
        if keys.size:
            self._pending.append((keys, times))
            self._pending_keys += keys.size
            if self._pending_keys > self._LIMIT or len(self._pending) > self._ARRAYS:
                self.result()

    def result(self) -> BucketCounts:
        """Return the counts so far."""
        if self._pending:
            known = self._counted.keys, self._counted.counts
            keys, times = zip(known, *self._pending, strict=True)
            self._counted = BucketCounts.from_entries(np.concatenate(keys), np.concatenate(times))
            self._pending = []
            self._pending_keys = 0
        if self.table is None:
            return self._counted
        return self._counted.merge(BucketCounts.from_dense(self.table))
