"""The integers of a rescaled tensor, on numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ops.qnn.requantize import rescaled
from compiler.ops.rules.requantize import TIES, Ints, multiplier_and_shift


def scaled_values(values: Ints, factor: NDArray[np.float32], rounding: str) -> Ints:
    """Compute what ``scaled`` of ``ops.rules.fixed_point`` writes as a call."""
    whole = np.broadcast_to(values, np.broadcast_shapes(values.shape, factor.shape))
    return rescaled(whole, *multiplier_and_shift(factor), TIES[rounding])
