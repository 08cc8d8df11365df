"""Choose a configuration from statistics, where nobody searches for one.

``QConfig.recommended()`` is fixed. It collapses where channels are uneven, and its weight_scale
"max" loses more per channel than per tensor: the step is max|w| / 128 and the last level 127, so
the largest weight of every channel is cut by 1/128, towards zero, and outputs lose their mean.
``choose`` starts from it and decides what the statistics of the channels speak for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._given_points import given_points
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.weighted_calls import weight_of, weighted_calls

SMOOTH_ALPHA: Final = 0.75
UNEVEN: Final = 2.0
"""Largest channel by median channel of one operator's data from which smoothing pays. Measured: a
CNN at 1.4 loses by it, networks from 2.0 on gain 0.2 dB, one at 40 gains 30 dB."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A field of the configuration, its value, and the figure that speaks for it."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}: {self.why}"


def choose(
    module: IRModule, statistics: ChannelStats | None
) -> tuple[QConfig, tuple[Decision, ...]]:
    """A configuration for a module, and why.

    Args:
        module: result of ``prerequisite_optimize``.
        statistics: channel statistics of it, as ``Calibration.channels`` gives them; None for a
            module without weights.
    Returns:
        ``QConfig.recommended()`` with the decisions. A model that brings its quantize points along
        keeps the recommended configuration.
    Source: Xiao et al., "SmoothQuant", 2023 (smoothing); Nagel et al., "Data-free quantization
    through weight equalization and bias correction", 2019 (the mean error of weights).
    """
    given = given_points(module).count
    if given:
        return QConfig.recommended(), (
            Decision("calibrate_mode", "percentile", f"the model brings {given} ranges along"),
        )
    decisions = [
        Decision("calibrate_mode", "mse", "the range with the least squared error of each tensor"),
        Decision(
            "activation_scheme",
            "asymmetric",
            "a zero point where the range of a tensor is not even, unsigned where it begins at 0",
        ),
    ]
    calls = weighted_calls(module["main"])
    if calls and statistics is not None:
        weights = [weight_of(call) for call, _ in calls]
        channels = sum(w.data.shape[0] for w in weights if w is not None and w.data.ndim)
        decisions += [
            Decision(
                "weight_scale",
                "mse",
                f"'max' would cut the largest weight of each of {channels} channels by 1/128",
            ),
            Decision(
                "bias_correction",
                True,
                f"rounded weights move the means of what {len(calls)} operators compute",
            ),
            _smoothing(statistics),
        ]
    chosen = {d.field: d.value for d in decisions}
    return QConfig.recommended(**chosen), tuple(decisions)


def _smoothing(statistics: ChannelStats) -> Decision:
    spreads = [_spread(channels.largest) for channels in statistics.ranges()]
    worst = int(np.argmax(spreads))
    label = statistics.labels[worst]
    told = (
        f"the largest channel that operator {label} reads is {spreads[worst]:.1f} times the median"
    )
    if spreads[worst] >= UNEVEN:
        return Decision("smooth_alpha", SMOOTH_ALPHA, f"{told}: the weights take a share of it")
    return Decision("smooth_alpha", None, f"{told}, less than {UNEVEN:g}: channels are even")


def _spread(largest: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Largest by median channel; channels that are always 0 are left out."""
    alive = largest[largest > 0]
    return float(alive.max() / np.median(alive)) if alive.size else 1.0
