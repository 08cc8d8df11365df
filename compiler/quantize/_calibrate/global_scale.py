"""calibrate_mode "global_scale": one range for every tensor, no data needed."""

from __future__ import annotations

import numpy as np

from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.stats import TensorStats


@calibrate_modes.register("global_scale")
def global_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """``qconfig.global_scale``, whatever the tensor holds."""
    return np.float32(qconfig.global_scale)
