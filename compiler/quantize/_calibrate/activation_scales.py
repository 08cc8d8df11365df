"""Scales of all INPUT and ACTIVATION quantize points, from statistics and a QConfig."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.kind import QAnnotateKind
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate import (  # noqa: F401 - each registers a calibrate_mode
    global_scale,
    kl_divergence,
    max,
    mse,
    percentile,
)
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.point_bits import input_bits
from compiler.quantize._calibrate.stats import CalibrationStats


def activation_scales(stats: CalibrationStats, qconfig: QConfig) -> NDArray[np.float32]:
    """Range S of every non-WEIGHT quantize point in binding order, shape (points,).

    A tensor that is zero everywhere gets S = 1 (R-09). Scales are remembered in ``stats``, so that
    the trials of a study pay for a search over thresholds once.

    Raises:
        CalibrationError: the mode needs more than ``stats`` holds.
        ConfigValueError: unknown calibrate_mode.
    Source: spec/quantize.md sections 6.1 and 6.3.
    """
    mode = calibrate_modes.require(qconfig.calibrate_mode)
    if stats.round == 1 and qconfig.calibrate_mode not in ("global_scale", "max"):
        raise CalibrationError(
            f"calibrate_mode {qconfig.calibrate_mode!r} needs both rounds of statistics",
            fix="collect round 2 over the merged result of round 1",
        )
    scales = np.ones(stats.point_tensor.size, np.float32)
    choices = (qconfig.calibrate_mode, qconfig.percentile, qconfig.global_scale)
    for point, (tensor, kind) in enumerate(zip(stats.point_tensor, stats.point_kind)):
        nbit = qconfig.get_nbit_by_kind(int(kind))
        if kind == QAnnotateKind.INPUT:
            nbit = input_bits(stats.readers[point], qconfig)
        key = (*choices, int(tensor), nbit)
        if key not in stats.memo:
            stats.memo[key] = mode(stats.tensor(int(tensor)), qconfig, nbit)
        scales[point] = stats.memo[key] or 1.0
    return scales
