"""Interval: bounds on every element of an integer tensor, per channel where that matters.

Bounds are Python integers in object arrays, so they never wrap. The C printer has its own ranges
(``compiler/lir/ranges.py``); the proof shares no code with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Arrays of Python integers: numpy types their elements as object.
Bound = NDArray[Any]

MAX_BOUNDS = 1 << 14
"""Longer arrays of bounds are merged along their longest axes: still true, less sharp."""


@dataclass(frozen=True, eq=False)
class Interval:
    """low <= x <= high for every element; both arrays broadcast against the tensor and have its
    rank, so that an axis is either 1 long or as long as the tensor's."""

    low: Bound
    high: Bound

    @cached_property
    def lowest(self) -> int:
        """Smallest lower bound; 0 for a tensor without elements."""
        return _end(self.low, np.minimum)

    @cached_property
    def highest(self) -> int:
        """Largest upper bound; 0 for a tensor without elements."""
        return _end(self.high, np.maximum)

    def along(self, axes: Sequence[int]) -> Interval:
        """One pair of bounds for everything along ``axes``, which become 1 long."""
        if not self.low.size:
            return constant_interval(0, 0, self.low.ndim)
        kept = tuple(axis % self.low.ndim for axis in axes)
        return Interval(
            np.asarray(self.low.min(axis=kept, keepdims=True), dtype=object),
            np.asarray(self.high.max(axis=kept, keepdims=True), dtype=object),
        )

    def per(self, axis: int, size: int) -> tuple[Bound, Bound]:
        """Bounds per index of one axis, as two vectors of ``size``."""
        rank = self.low.ndim
        merged = self.along([a for a in range(rank) if a != axis % rank])
        return (
            np.broadcast_to(merged.low.reshape(-1), (size,)),
            np.broadcast_to(merged.high.reshape(-1), (size,)),
        )

    def union(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return interval(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def with_value(self, number: int) -> Interval:
        """The smallest interval that also holds ``number``."""
        return Interval(np.minimum(self.low, number), np.maximum(self.high, number))

    def shaped_for(self, shape: Sequence[int]) -> Interval:
        """The same bounds with the rank of a tensor; one pair where their axes are not its own."""
        missing = len(shape) - self.low.ndim
        if missing < 0 or self.low.shape != self.high.shape:
            return self.scalar(len(shape))
        own = (1,) * missing + self.low.shape
        if any(size not in (1, wanted) for size, wanted in zip(own, shape)):
            return self.scalar(len(shape))
        if missing:
            return Interval(self.low.reshape(own), self.high.reshape(own))
        return self

    def scalar(self, rank: int) -> Interval:
        """One pair of bounds for the whole tensor."""
        return constant_interval(self.lowest, self.highest, rank)


def _end(bounds: Bound, farther: np.ufunc) -> int:
    if bounds.size == 1:  # most are of a whole tensor
        return int(bounds.item())
    if bounds.size:
        return int(farther.reduce(bounds, axis=None))
    return 0


def exact(values: Any) -> Bound:
    """An array of Python integers."""
    array = np.asarray(values)
    if array.dtype == object:
        return array
    found = np.empty(array.shape, dtype=object)
    found[...] = array.astype(object)
    return found


def interval(low: Any, high: Any) -> Interval:
    """Bounds, of any integer dtype, as an Interval of a bearable size."""
    low, high = np.asarray(low), np.asarray(high)
    if low.shape != high.shape:
        low, high = np.broadcast_arrays(low, high)
    while low.size > MAX_BOUNDS:
        axis = int(np.argmax(low.shape))
        low = low.min(axis=axis, keepdims=True)
        high = high.max(axis=axis, keepdims=True)
    return Interval(exact(low), exact(high))


def constant_interval(low: int, high: int, rank: int) -> Interval:
    """The same bounds for every element of a tensor of ``rank`` axes."""
    shape = (1,) * rank
    ends = np.empty(shape, object), np.empty(shape, object)
    for array, end in zip(ends, (low, high)):
        array.fill(int(end))
    return Interval(*ends)
