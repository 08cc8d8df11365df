"""The calibrate_mode table, and the scales that a mode gives to all quantize points of a module.

A mode answers with S, the real-valued range [-S, S] that one tensor is quantized over. To add one:
write a function under ``@calibrate_modes.register(name)``, in a module of your own or in a file
beside this one that ``activation_scales.py`` imports.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.named_table import NamedTable
from compiler.qtypes.config_checks import allow_calibrate_mode
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.stats import TensorStats

CalibrateMode = Callable[[TensorStats, QConfig, int], np.float32]
"""``mode(stats, qconfig, nbit) -> S >= 0`` in the units of the tensor; nbit of the point's kind."""


class _CalibrateModes(NamedTable[CalibrateMode]):
    """A registered name is one that ``QConfig.calibrate_mode`` takes."""

    def register(self, name: str) -> Callable[[CalibrateMode], CalibrateMode]:
        allow_calibrate_mode(name)
        return super().register(name)


calibrate_modes: NamedTable[CalibrateMode] = _CalibrateModes("calibrate_mode", ConfigValueError)

TwoSidedMode = Callable[[TensorStats, QConfig, int], tuple[float, float]]
"""``mode(stats, qconfig, nbit) -> (low, high)`` with low <= 0 <= high, for tensors that have a zero
point. A calibrate_mode without one gives its range [-S, S] cut at the extremes that were seen."""

two_sided_modes: NamedTable[TwoSidedMode] = NamedTable("calibrate_mode", ConfigValueError)


def two_sided_range(stats: TensorStats, qconfig: QConfig, nbit: int) -> tuple[float, float]:
    """(low, high), low <= 0 <= high, in the units of the tensor."""
    if qconfig.calibrate_mode in two_sided_modes.names():
        return two_sided_modes.require(qconfig.calibrate_mode)(stats, qconfig, nbit)
    threshold = float(calibrate_modes.require(qconfig.calibrate_mode)(stats, qconfig, nbit))
    low, high = min(float(stats.minimum), 0.0), max(float(stats.maximum), 0.0)
    return max(low, -threshold), min(high, threshold)
