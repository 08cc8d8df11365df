"""ChannelRanges: what calibration knows of the data of one weighted operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRanges:
    """What is known of the data of one weighted operator, channel by channel.

    Attributes:
        largest: max|x|, float64.
        mean: float64.
    """

    largest: NDArray[np.float64]
    mean: NDArray[np.float64]

    def times(self, factors: NDArray[np.float64]) -> ChannelRanges:
        """The same of data whose channels are multiplied by ``factors`` > 0."""
        return ChannelRanges(self.largest * factors, self.mean * factors)
