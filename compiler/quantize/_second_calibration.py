"""The second calibration: ranges measured on the network that the first ones quantize.

What a point reads then carries the error that was made upstream of it. Measured with float32
arithmetic on the simulated network, weights and biases corrected as the QConfig asks.
Source: spec/quantize.md W-5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._candidate import build_candidate
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import (
    Batch,
    ExecutorFactory,
    calibration_stats,
    float_executor,
)
from compiler.quantize.calibration.stats import CalibrationStats


def second_stats(
    mod: IRModule,
    qconfig: QConfig,
    ranges: Sequence[float] | NDArray[np.float32],
    dataset: Iterable[Batch],
    channels: ChannelStats | None = None,
    executor: ExecutorFactory = float_executor,
) -> CalibrationStats:
    """Statistics that ``activation_scales`` makes the final ranges of.

    Args:
        mod: result of ``prerequisite_optimize``.
        qconfig: one with ``calibrate_passes`` 2.
        ranges: of the first calibration, as ``activation_scales`` gives them.
        dataset: batches, iterated twice.
        channels: where ``qconfig.needs_channels``.

    Raises:
        CalibrationError: the ranges or the data do not fit.
    """
    simulation = qconfig.with_overrides(do_simulation=True)
    quantized = build_candidate(mod, simulation, ranges, channels).simulated
    percentiles = (qconfig.percentile,)
    return calibration_stats(quantized, dataset, percentiles, executor, simulated=True)
