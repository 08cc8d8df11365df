"""calibrate_mode "max": the range holds every value seen."""

from __future__ import annotations

import numpy as np

from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.stats import TensorStats


@calibrate_modes.register("max")
def max_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """max|x|."""
    return stats.largest
