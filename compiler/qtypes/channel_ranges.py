"""ChannelRanges: what calibration knows of the data of one weighted operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Levels = NDArray[np.int8 | np.int32]
_MOST_BYTES: Final = 1 << 28
"""Bytes of the float network that are kept; what comes later is made each time."""


def narrowed(levels: NDArray[np.floating[Any]]) -> Levels:
    """Whole numbers below 2^31 in the narrower of int8 and int32 that holds them."""
    narrow = np.abs(levels).max(initial=0) <= np.iinfo(np.int8).max
    return levels.astype(np.int8 if narrow else np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeight:
    """Rounding of the weight of one operator.

    Attributes:
        levels: whole numbers, (groups, outputs, taps).
        mean_error: what the mean output is too large by with these levels, float64 (outputs,), in
            real units; None where that is not measured with the levels.
    """

    levels: Levels
    mean_error: NDArray[np.float64] | None = None


class FloatSide:
    """Data that layers read in the float network, for candidates that differ in their weights
    only."""

    def __init__(self) -> None:
        self._held: dict[Any, list[NDArray[Any]]] = {}
        self._room = _MOST_BYTES

    def get(self, key: Hashable, make: Callable[[], Iterable[NDArray[Any]]]) -> list[NDArray[Any]]:
        """Return the kept arrays of the runs of a layer, else those that ``make`` gives."""
        held = self._held.get(key)
        if held is None:
            held = list(make())
            size = sum(array.nbytes for array in held)
            if size <= self._room:
                self._held[key] = held
                self._room -= size
        return held


@dataclass(slots=True, eq=False)
class Rounding:
    """Rounding of the weights of a network.

    Attributes:
        weights: of weighted operators, by their place in visiting order.
        ranges: of activations, which ``fit_ranges`` chose on the way, float32 in the order of
            ``activation_scales``; None where it was not asked.
        float_side: where what the float network says is kept; None where it is not.
    """

    weights: dict[int, RoundedWeight] = field(default_factory=dict)
    ranges: NDArray[np.float32] | None = None
    float_side: FloatSide | None = None

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays of weights and ranges; no pickle."""
        arrays: dict[str, NDArray[Any]] = {} if self.ranges is None else {"ranges": self.ranges}
        for place, one in self.weights.items():
            arrays[f"levels.{place}"] = one.levels
            if one.mean_error is not None:
                arrays[f"mean_error.{place}"] = one.mean_error
        return arrays

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Rounding:
        """Inverse of ``to_arrays``."""
        named = (name.partition(".") for name in arrays)
        weights = {
            int(place): RoundedWeight(arrays[f"levels.{place}"], arrays.get(f"mean_error.{place}"))
            for kind, _, place in named
            if kind == "levels"
        }
        return Rounding(weights, arrays.get("ranges"))


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRanges:
    """Ranges of the data of one weighted operator, channel by channel.

    Attributes:
        low: min x, float64.
        high: max x, float64.
        mean: float64.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]

    @property
    def largest(self) -> NDArray[np.float64]:
        """max|x|."""
        return np.maximum(self.high, -self.low)

    def times(self, factors: NDArray[np.float64]) -> ChannelRanges:
        """The same of data whose channels are multiplied by ``factors`` > 0."""
        return ChannelRanges(self.low * factors, self.high * factors, self.mean * factors)
