"""ChannelRanges: what calibration knows of the data of one weighted operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class InputGram:
    """Sums over all positions of products of what two taps of a weight read.

    Attributes:
        products: int64 (groups, taps, taps), in units of the taps.
        sums: int64 (groups, taps), of what each tap reads.
        count: positions.
        unit: float64 (groups, taps): what a step of each tap stands for.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
    """

    products: NDArray[np.int64]
    sums: NDArray[np.int64]
    count: int
    unit: NDArray[np.float64]
    channels: NDArray[np.int64]

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
