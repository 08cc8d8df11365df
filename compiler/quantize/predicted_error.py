"""How much a configuration may lose, from histograms and weights alone."""

from __future__ import annotations

from dataclasses import dataclass, field
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
_ROUNDED: Final = {"nearest": 1.0, "corrected": 1.0, "sequential": 0.4}
"""Share of a layer's weight error that is left, by weight_rounding; measured on small networks."""


@dataclass(slots=True, eq=False)
class PredictedError:
    """The error of configurations, predicted from statistics; no module is built.

    The errors of all activations and weights, each over its signal, are taken to add up; what
    layers amplify is not known. So the figure tells bad configurations from good ones, and hardly
    the good ones from each other.

    Args:
        module: result of ``prerequisite_optimize``.
        stats: of one graph variant, both rounds; smoothing and equalization stay as there.
    """

    module: IRModule
    stats: CalibrationStats
    _known: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def sqnr_db(self, qconfig: QConfig) -> float:
        """Signal over predicted error, in dB."""
        shape: tuple[Any, ...] = (qconfig.activation_scheme, qconfig.calibrate_mode)
        shape += (qconfig.percentile, qconfig.global_scale, qconfig.nbit_input)
        weights: tuple[Any, ...] = (qconfig.weight_granularity, qconfig.weight_scale)
        weights += (qconfig.nbit_weight, qconfig.layers)
        if shape not in self._known:
            self._known[shape] = self._of_activations(qconfig)
        if weights not in self._known:
            self._known[weights] = self._of_weights(qconfig)
        error = self._known[shape] + self._known[weights] * _ROUNDED[qconfig.weight_rounding]
        return float(-10 * np.log10(max(error, 1e-12)))

    def _of_activations(self, qconfig: QConfig) -> float:
        ranges = activation_scales(self.stats, qconfig).astype(np.float64)
        points = self.stats.point_tensor.size
        if points == 0:
            return 0.0
        ends = ranges.reshape(-1, points)
        if len(ends) == 1:
            ends = np.stack([ends[0], -ends[0], ends[0]])
        total = 0.0
        for place, (tensor, kind) in enumerate(zip(self.stats.point_tensor, self.stats.point_kind)):
            if kind == QAnnotateKind.INPUT:
                nbit = qconfig.get_nbit_by_kind(int(kind))
                low, high = map(float, ends[1:, place])
                total += _relative_error(self.stats.tensor(int(tensor)), low, high, nbit)
        return total

    def _of_weights(self, qconfig: QConfig) -> float:
        total = 0.0
        axis = 0 if qconfig.weight_granularity == "channel" else None
        choices = choices_of(self.module["main"], qconfig.layers)
        for call, _ in weighted_calls(self.module["main"]):
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
            total += float(np.square(held - values).sum() / max(np.square(values).sum(), 1e-30))
        return total


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
