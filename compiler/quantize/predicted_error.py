"""How much a configuration may lose, from histograms and weights alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.qtypes.layer_choices import LayerChoice
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize._layers import choices_of
from compiler.quantize.calibration.activation_scales import activation_scales
from compiler.quantize.calibration.stats import NUM_BINS, CalibrationStats, TensorStats
from compiler.quantize.calibration.weight_scale import weight_range
from compiler.quantize.calibration.weighted_calls import weight_of, weighted_calls

_WEIGHTS_LOOKED_AT: Final = 1 << 14
"""Weights of one layer that a prediction rounds: rows in equal steps."""


def predicted_sqnr_db(module: IRModule, stats: CalibrationStats, qconfig: QConfig) -> float:
    """Signal over error of a configuration in dB, predicted from statistics; no module is built.

    The errors of all activations and weights, each over its signal, are taken to add up; what
    layers amplify is not known. So the figure tells bad configurations from good ones, and hardly
    the good ones from each other.

    Args:
        module: result of ``prerequisite_optimize``.
        stats: of its graph, both rounds; smoothing stays as there.
        qconfig: weights count as rounded to the nearest level.
    """
    error = _of_activations(stats, qconfig) + _of_weights(module, qconfig)
    return float(-10 * np.log10(max(error, 1e-12)))


def _of_activations(stats: CalibrationStats, qconfig: QConfig) -> float:
    ranges = activation_scales(stats, qconfig).astype(np.float64)
    points = stats.point_tensor.size
    if points == 0:
        return 0.0
    ends = ranges.reshape(-1, points)
    if len(ends) == 1:
        ends = np.stack([ends[0], -ends[0], ends[0]])
    total = 0.0
    for place, (tensor, kind) in enumerate(zip(stats.point_tensor, stats.point_kind)):
        if kind == QAnnotateKind.INPUT:
            nbit = qconfig.get_nbit_by_kind(int(kind))
            low, high = map(float, ends[1:, place])
            total += _relative_error(stats.tensor(int(tensor)), low, high, nbit)
    return total


def _of_weights(module: IRModule, qconfig: QConfig) -> float:
    total = 0.0
    axis = 0 if qconfig.weight_granularity == "channel" else None
    choices = choices_of(module["main"], qconfig.layers)
    for call, _ in weighted_calls(module["main"]):
        weight, choice = weight_of(call), choices.get(call, LayerChoice())
        if weight is None or weight.data.ndim < 2 or choice.float:
            continue
        nbit = choice.nbit_weight or qconfig.nbit_weight
        stride = max(weight.data.size // _WEIGHTS_LOOKED_AT, 1)
        values = weight.data[::stride].astype(np.float32)
        largest = weight_range(values, qconfig.weight_scale, nbit, axis)
        step = largest / 2.0 ** (nbit - 1)
        step = step.reshape(-1, *[1] * (values.ndim - 1)) if axis == 0 else step
        limit = 2 ** (nbit - 1) - 1
        held = np.clip(np.rint(values / step), -limit, limit) * step
        total += squares(held - values) / max(squares(values), 1e-30)
    return total


def squares(values: NDArray[Any]) -> float:
    """Return the sum of the squares, in float64 where that of float32 overflows."""
    with np.errstate(over="ignore"):
        total = float(np.square(values).sum())
    return total if np.isfinite(total) else float(np.square(values, dtype=np.float64).sum())


def _relative_error(one: TensorStats, low: float, high: float, nbit: int) -> float:
    """Squared error of a grid of 2^nbit levels over [low, high] by the squares of the values."""
    assert one.bins is not None
    filled = one.bins.keys.astype(np.int64)
    centre = (filled - NUM_BINS // 2) * (2.0 * float(one.largest) / NUM_BINS)
    counts: NDArray[Any] = one.bins.counts.astype(np.float64)
    step = max((high - low) / (2**nbit - 1), 1e-30)
    held = np.clip(np.rint(centre / step), np.rint(low / step), np.rint(high / step)) * step
    signal = float(np.square(centre) @ counts)
    return float(np.square(held - centre) @ counts) / signal if signal else 0.0
