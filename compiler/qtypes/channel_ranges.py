"""ChannelRanges: what calibration knows of the data of one weighted operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FITS: Final = 8


class Fits:
    """The last few weights that were fitted to the data of one operator.

    Configurations that differ in what has no part in it (ranges of activations, other layers) share
    a fit, and fitting costs more than all else about a candidate.
    """

    def __init__(self) -> None:
        self._levels: dict[bytes, NDArray[np.int8 | np.int32]] = {}

    def get(self, key: bytes, make: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Whole numbers below 2^31 that are known under ``key``, or made now."""
        levels = self._levels.pop(key, None)
        if levels is None:
            made = make()
            narrow = np.abs(made).max(initial=0) <= np.iinfo(np.int8).max
            levels = made.astype(np.int8 if narrow else np.int32)
        self._levels[key] = levels  # the one that was used last stands last
        while len(self._levels) > _FITS:
            self._levels.pop(next(iter(self._levels)), None)
        return levels.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class InputGram:
    """Sums over all positions of products of what two taps of a weight read.

    Attributes:
        products: int64 (groups, taps, taps), in units of the taps.
        sums: int64 (groups, taps), of what each tap reads.
        count: positions.
        unit: float64 (groups, taps): what a step of each tap stands for.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
        fits: weights that were fitted to these products.
    """

    products: NDArray[np.int64]
    sums: NDArray[np.int64]
    count: int
    unit: NDArray[np.float64]
    channels: NDArray[np.int64]
    fits: Fits = field(default_factory=Fits)

    def matrix(self, centred: bool) -> NDArray[np.float64]:
        """The mean products in real units, float64 (groups, taps, taps).

        Args:
            centred: of the deviations from each tap's mean.
        """
        count = max(self.count, 1)
        means = self.products / count
        if centred:
            mean = self.sums / count
            means -= mean[:, :, None] * mean[:, None, :]
        means *= self.unit[:, :, None]
        means *= self.unit[:, None, :]
        return means


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRanges:
    """What is known of the data of one weighted operator, channel by channel.

    Attributes:
        largest: max|x|, float64.
        mean: float64.
        gram: products of what the taps of the weight read; None where they were not measured.
    """

    largest: NDArray[np.float64]
    mean: NDArray[np.float64]
    gram: InputGram | None = None

    def times(self, factors: NDArray[np.float64]) -> ChannelRanges:
        """The same of data whose channels are multiplied by ``factors`` > 0."""
        gram = self.gram
        if gram is not None:
            gram = replace(gram, unit=gram.unit * factors[gram.channels])
        return ChannelRanges(self.largest * factors, self.mean * factors, gram)
