"""Scales of all INPUT and ACTIVATION quantize points, from statistics and a QConfig."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from compiler.errors import CalibrationError
from compiler.ir.garbage import collector_rests
from compiler.ir.ty import bits
from compiler.ops.annotation.minus_infinity import INFINITE, LIMIT
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.bits.point_bits import TABULATED, input_bits
from compiler.quantize.calibration.stats import CalibrationStats
from compiler.quantize.scales import kl_divergence, mse  # noqa: F401 - each registers a calibrate_mode
from compiler.quantize.scales.modes import calibrate_modes, two_sided_range


@collector_rests
def activation_scales(stats: CalibrationStats, qconfig: QConfig) -> NDArray[np.float32]:
    """Range S of every non-WEIGHT quantize point in binding order, shape (points,).

    With an ``activation_scheme`` other than "symmetric" the shape is (3 * points,): S of all
    points, then the lower ends, then the upper ends of the points that may have an uneven grid or
    that only tables read. A lower end of 0 says that no value below 0 was seen.

    A tensor that is zero everywhere gets S = 1. Scales are remembered in ``stats``, so that
    the trials of a study pay for a search over thresholds once.

    Raises:
        CalibrationError: the mode needs more than ``stats`` holds.
        ConfigValueError: unknown calibrate_mode.
    Source: Relay v0.10 quantize/_calibrate.py.
    """
    mode = calibrate_modes.require(qconfig.calibrate_mode)
    if stats.round == 1 and qconfig.calibrate_mode not in ("global_scale", "max"):
        raise CalibrationError(
            f"calibrate_mode {qconfig.calibrate_mode!r} needs both rounds of statistics",
            fix="collect round 2 over the merged result of round 1",
        )
    even = qconfig.activation_scheme == "symmetric"
    measured = not even and qconfig.needs_ranges
    widest = bits(qconfig.dtype_input)
    rows = np.ones((3, stats.point_tensor.size), np.float32)
    choices = (qconfig.calibrate_mode, qconfig.percentile, qconfig.global_scale)
    for point, (tensor, kind) in enumerate(zip(stats.point_tensor, stats.point_kind)):
        nbit = qconfig.get_nbit_by_kind(int(kind))
        if kind == QAnnotateKind.INPUT:
            nbit = input_bits(stats.readers[point], qconfig)
        one = stats.tensors[tensor]
        memo = one.memo
        narrow = kind == QAnnotateKind.INPUT and measured and nbit <= widest
        unsigned = bool(narrow and one.minimum >= 0)
        two_sided = narrow and not unsigned and qconfig.activation_scheme == "asymmetric"
        two_sided |= measured and nbit > widest and stats.readers[point] in TABULATED
        # All levels on one side are the positive half of a grid of one more bit.
        nbit += unsigned
        key = (*choices, nbit)
        if key not in memo:
            # More threads wait longer for each other than the products of a search take.
            with _libraries().limit(limits=1, user_api="blas"):
                huge = one.largest > INFINITE
                memo[key] = np.float32(LIMIT) if huge else mode(one, qconfig, nbit)
        threshold = memo[key] or 1.0
        ends = (0.0 if unsigned else -threshold, threshold)
        if two_sided:
            if (*key, "ends") not in memo:
                memo[*key, "ends"] = two_sided_range(one, qconfig, nbit, float(memo[key]))
            ends = memo[*key, "ends"]
            if max(-ends[0], ends[1]) > INFINITE:
                ends = max(ends[0], -LIMIT), min(ends[1], LIMIT)
        rows[:, point] = threshold, *ends
    return rows[0] if even else rows.reshape(-1)


@cache
def _libraries() -> ThreadpoolController:
    """Those loaded by now, numpy's among them; to look for them takes milliseconds."""
    return ThreadpoolController()
