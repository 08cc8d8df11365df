"""Predict the loss of a configuration, from histograms and weights alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.module import IRModule
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.qtypes.layer_choices import LayerChoice
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.calibration.stats import NUM_BINS, CalibrationStats, TensorStats
from compiler.quantize.layers import choices_of, named_layers
from compiler.quantize.scales.activation_scales import activation_scales
from compiler.quantize.scales.weight_scale import weight_range
from compiler.quantize.smoothing.channel_groups import find_groups
from compiler.quantize.weighted_calls import weight_of, weighted_calls

_WEIGHTS_LOOKED_AT: Final = 1 << 14
"""Weights of one layer that a prediction rounds: rows in equal steps."""


def predicted_sqnr_db(
    module: IRModule,
    stats: CalibrationStats,
    qconfig: QConfig,
    channels: Sequence[ChannelRanges] = (),
) -> float:
    """Signal over error of a configuration in dB, predicted from statistics; no module is built.

    The errors of all activations and weights, each over its signal, are taken to add up; a channel
    counts by what the layer that reads it makes of it, so that a large one whose weights are small
    does not hide what the others lose. What further layers amplify is not known. So the figure
    tells bad configurations from good ones, and hardly the good ones from each other.

    Args:
        module: result of ``prerequisite_optimize``.
        stats: of its graph, both rounds; smoothing stays as there.
        qconfig: weights count as rounded to the nearest level.
        channels: of the data of each weighted operator, in visiting order; even ones without them.
    """
    reach = _reach(module, channels)
    error = _of_activations(module, stats, qconfig, reach) + _of_weights(module, qconfig, reach)
    return float(-10 * np.log10(max(error, 1e-12)))


def _reach(module: IRModule, channels: Sequence[ChannelRanges]) -> dict[Call, NDArray[Any]]:
    """Return the largest magnitude of each input channel over that of the largest channel, for
    every layer that sums over channels."""
    read = {call: one for (call, _), one in zip(weighted_calls(module["main"]), channels)}
    bridges = find_groups(module["main"]).bridges if read else ()
    found = {}
    for one in bridges:
        if one.call in read:
            largest = read[one.call].largest
        else:
            largest = np.empty(0)
        if one.pairs and one.weight.shape[1] == largest.size and largest.any():
            found[one.call] = largest / largest.max()
    return found


def _amplified(weight: NDArray[Any], reach: NDArray[Any]) -> float:
    """Error over signal of a sum over channels, where both are 1 for the data: the error is alike
    in all channels, the signal is not."""
    columns = np.square(weight, dtype=np.float64).sum(axis=(0, *range(2, weight.ndim)))
    signal = float(columns @ np.square(reach))
    if signal:
        return float(columns.mean() * np.square(reach).sum()) / signal
    return 1.0


def _of_activations(
    module: IRModule,
    stats: CalibrationStats,
    qconfig: QConfig,
    reach: Mapping[Call, NDArray[Any]],
) -> float:
    amplified = {
        name: _amplified(weight.data, reach[call])
        for call, name in named_layers(module["main"]).items()
        if call in reach and (weight := weight_of(call)) is not None
    }
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
            more = max((amplified.get(name, 1.0) for name in stats.readers[place]), default=1.0)
            total += more * _relative_error(stats.tensors[tensor], low, high, nbit)
    return total


@np.errstate(over="ignore")
def _of_weights(module: IRModule, qconfig: QConfig, reach: Mapping[Call, NDArray[Any]]) -> float:
    total = 0.0
    axis = 0 if qconfig.weight_granularity == "channel" else None
    choices = choices_of(module["main"], qconfig.layers)
    for call, _ in weighted_calls(module["main"]):
        weight = weight_of(call)
        choice = choices.get(call, LayerChoice())
        if weight is None or weight.data.ndim < 2 or choice.float:
            continue
        nbit = choice.nbit_weight or qconfig.nbit_weight
        stride = max(weight.data.size // _WEIGHTS_LOOKED_AT, 1)
        values = weight.data[::stride].astype(np.float32)
        largest = weight_range(values, qconfig.weight_scale, nbit, axis)
        step = largest / 2.0 ** (nbit - 1)
        if axis == 0:
            step = step.reshape(-1, *[1] * (values.ndim - 1))
        limit = 2 ** (nbit - 1) - 1
        held = np.clip(np.rint(values / step), -limit, limit) * step
        met = reach[call].reshape(-1, *[1] * (values.ndim - 2)) if call in reach else 1.0
        total += squares((held - values) * met) / max(squares(values * met), 1e-30)
    return total


def squares(values: NDArray[Any]) -> float:
    """Return the sum of the squares, in float64 where that of float32 overflows, which the caller
    ignores."""
    total = float(np.add.reduce(np.square(values), axis=None))
    if math.isfinite(total):
        return total
    return float(np.square(values, dtype=np.float64).sum())


def _relative_error(one: TensorStats, low: float, high: float, nbit: int) -> float:
    """Squared error of a grid of 2^nbit levels over [low, high] by the squares of the values."""
    assert one.bins is not None
    filled = one.bins.keys.astype(np.int64)
    centre = (filled - NUM_BINS // 2) * (2.0 * float(one.largest) / NUM_BINS)
    counts: NDArray[Any] = one.bins.counts.astype(np.float64)
    step = max((high - low) / (2**nbit - 1), 1e-30)
    held = np.clip(np.rint(centre / step), np.rint(low / step), np.rint(high / step)) * step
    signal = float(np.square(centre) @ counts)
    if signal:
        return float(np.square(held - centre) @ counts) / signal
    return 0.0
