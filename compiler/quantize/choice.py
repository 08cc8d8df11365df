"""Choose a configuration from statistics, where no search does.

``QConfig.recommended()`` is fixed. It collapses where channels are uneven, and its weight_scale
"max" loses more per channel than per tensor: the step is max|w| / 128 and the last level 127, so
the largest weight of every channel is cut by 1/128, towards zero, and outputs lose their mean.
``choose`` starts from it and makes the changes that the statistics of the channels suggest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._channel_groups import find_groups
from compiler.quantize._given_points import given_points
from compiler.quantize._rescaling import free_rescalings
from compiler.quantize._sequential_rounding import sequential_products
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.input_sample import batch_size
from compiler.quantize.calibration.weighted_calls import weight_of, weighted_calls
from compiler.quantize.wide_inputs import TABLE_BITS, wide_inputs

SMOOTH_ALPHA: Final = 0.75
UNEVEN: Final = 2.0
"""Largest channel by median channel of one operator's data from which smoothing pays. Measured: a
CNN at 1.4 loses by it, networks from 2.0 on gain 0.2 dB, one at 40 gains 30 dB."""
UNEVEN_FITTED: Final = 1.25
"""The same where ranges are fitted, which leaves the smoothed channels room. Measured over 128 and
512 samples: five networks at 1.4 to 2.0 gain -0.2 to 0.9 dB, 0.3 on average."""

UNEVEN_SELDOM: Final = 4.0
"""The same for channels that were seen less than ``_SEEN`` times: the largest value of a few says
little of those to come. A perceptron at 2.2 loses 10, 7 and 1 dB by smoothing over 128, 128 and 512
samples."""
_SEEN: Final = 1024
UNEVEN_FEW: Final = 8.0
"""The same over fewer than ``_MANY`` samples: over 2 to 16, ten networks at 1.4 to 5.8 lose up to
25 dB by smoothing, one at 40 to 70 gains 8 to 22. Over one all lose 0 to 23 dB."""
_MANY: Final = 32


@dataclass(frozen=True, slots=True)
class Decision:
    """A field of the configuration, its value, and the figure that is the reason."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}: {self.why}"


MOST_PRODUCTS: Final = 5 * 10**10
"""Of weights that are rounded sequentially; a few CPU seconds."""
_ENOUGH: Final = 2
"""Samples from which sequential rounding with fitted ranges is chosen. Measured on 11 small
networks: over 2 samples it gains 1.6 to 8.8 dB, over 8 -0.1 to 5.3, over 16 0 to 5.9, over 128 0.3
to 8; over 1 it gains -2.4 to 1.7."""


def choose(
    module: IRModule, statistics: ChannelStats | None, rounding: bool = True
) -> tuple[QConfig, tuple[Decision, ...]]:
    """A configuration for a module, and why.

    Args:
        module: result of ``prerequisite_optimize``.
        statistics: channel statistics of it, as ``Calibration.channels`` gives them; None for a
            module without weights.
        rounding: choose ``weight_rounding`` too; a search compares its values itself.
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
        samples = statistics.runs * batch_size(module)
        large = sequential_products(module) > MOST_PRODUCTS
        rounded = _rounding(samples, large) if rounding else []
        fitted = any(decision.field == "fit_ranges" for decision in rounded)
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
            _smoothing(module, statistics, samples, fitted),
        ]
        free = free_rescalings(module, large)
        decisions += [Decision(field, True, why) for field, why in free.items()]
        wide = wide_inputs(module)
        if wide.layers:
            decisions.append(Decision("layers", wide.layers, "; ".join(wide.why)))
        if wide.cheap_tables:
            work = f"layers multiply {wide.products_a_table:.0f} times for each value of them"
            why = f"tables of functions read {TABLE_BITS} bits nearly as fast as 8: {work}"
            decisions.append(Decision("table_bits", TABLE_BITS, why))
        decisions += rounded
    chosen = {d.field: d.value for d in decisions}
    return QConfig.recommended(**chosen), tuple(decisions)


def _uneven_from(samples: int, seen: float, fitted: bool) -> float:
    """Largest channel by median channel from which smoothing pays.

    Args:
        samples: of the calibration set.
        seen: values of one channel.
        fitted: whether ranges are.
    """
    if samples < _ENOUGH:
        return math.inf
    if samples < _MANY:
        return UNEVEN_FEW
    if seen < _SEEN:
        return UNEVEN_SELDOM
    return UNEVEN_FITTED if fitted else UNEVEN


def _smoothing(module: IRModule, statistics: ChannelStats, samples: int, fitted: bool) -> Decision:
    """By the channels that take factors; those in front of a clip do so with ``smooth_clips``."""
    groups = find_groups(module["main"], through_concat=True)
    spreads: dict[str, tuple[float, float]] = {}
    for (call, _), label, channels in zip(
        weighted_calls(module["main"]), statistics.labels, statistics.ranges(), strict=True
    ):
        group = groups.group_of.get(call.args[0])
        if group is not None and not groups.limits[group]:
            size = call.args[0].tensor_type.num_elements
            seen = statistics.runs * size / max(channels.largest.size, 1)
            spreads[label] = _spread(channels.largest), _uneven_from(samples, seen, fitted)
    if not spreads:
        return Decision("smooth_alpha", None, "no operator reads channels that take factors")
    label = max(spreads, key=lambda one: (spreads[one][0] / spreads[one][1], spreads[one][0]))
    spread, enough = spreads[label]
    told = f"the largest channel that operator {label} reads is {spread:.1f} times"
    if spread >= enough:
        why = f"{told} the median: the weights take a share of it"
        return Decision("smooth_alpha", SMOOTH_ALPHA, why)
    even = f"less than {enough:g}: channels are even"
    why = "but one sample says little of those to come" if math.isinf(enough) else even
    return Decision("smooth_alpha", None, f"{told} the median, {why}")


def _rounding(samples: int, large: bool) -> list[Decision]:
    """Sequentially where there are enough samples to fit to, and where it does not take long."""
    if samples < _ENOUGH:
        why = f"{samples} calibration sample is too few to fit weights to; {_ENOUGH} are enough"
        return [Decision("weight_rounding", "nearest", why)]
    if large:
        why = "fitting weights of this size takes long; weight_rounding=sequential does it"
        return [Decision("weight_rounding", "nearest", why)]
    why = f"layer by layer, each fitted to make up for earlier ones on {samples} samples"
    fitted = "each range is fitted to what reads it, given the rounded layers before it"
    return [
        Decision("weight_rounding", "sequential", why),
        Decision("fit_ranges", True, fitted),
    ]


def _spread(largest: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Largest by median channel; channels that are always 0 are left out."""
    alive = largest[largest > 0]
    return float(alive.max() / np.median(alive)) if alive.size else 1.0
