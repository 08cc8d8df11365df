"""Choose a configuration from statistics, where no search does.

``QConfig.recommended()`` is fixed. It collapses where channels are uneven, and its weight_scale
"max" loses more per channel than per tensor: the step is max|w| / 128 and the last level 127, so
the largest weight of every channel is cut by 1/128, towards zero, and outputs lose their mean.
``choose`` starts from it and makes the changes that the statistics of the channels suggest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.bits.wide_inputs import left_in_float, wide_inputs
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.input_sample import batch_size
from compiler.quantize.scales.given_points import given_points
from compiler.quantize.smoothing.channel_groups import find_groups
from compiler.quantize.weight_rounding.sequential_rounding import (
    FITTING_SECONDS,
    MOST_SECONDS,
    sequential_seconds,
)
from compiler.quantize.weighted_calls import weight_of, weighted_calls

SMOOTH_ALPHA: Final = 0.75
_SELDOM: Final = 1024
"""Channels that were seen less often smooth only where much is gained …"""
_MANY: Final = 32
"""… and so do fewer samples: the largest value of a few says little of those to come."""
_MUCH: Final = 2.0
"""dB. Over 2 to 16 samples, ten networks that are predicted to gain less lose up to 25 dB by
smoothing, one that gains 5.6 gains 8 to 22."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A field of the configuration, its value, and the figure that is the reason."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}: {self.why}"


_ENOUGH: Final = 2
"""Samples from which sequential rounding with fitted ranges is chosen. Measured on 11 small
networks: over 2 samples it gains 1.6 to 8.8 dB, over 8 -0.1 to 5.3, over 16 0 to 5.9, over 128 0.3
to 8; over 1 it gains -2.4 to 1.7."""


Gain = Callable[[QConfig], float]
"""dB that smoothing by ``SMOOTH_ALPHA`` is predicted to gain in a configuration without."""


def choose(
    module: IRModule, statistics: ChannelStats | None, gain: Gain = lambda _: 0.0
) -> tuple[QConfig, tuple[Decision, ...]]:
    """A configuration for a module, and why.

    Args:
        module: result of ``prerequisite_optimize``.
        statistics: channel statistics of it, as ``Calibration.channels`` gives them; None for a
            module without weights.
        gain: asked of what is chosen but for smoothing, where it decides; nothing unless given.
    Returns:
        ``QConfig.recommended()`` with the decisions. For a model that brings points along
        these are about what it leaves in float.
    Source: Xiao et al., "SmoothQuant", 2023 (smoothing); Nagel et al., "Data-free quantization
    through weight equalization and bias correction", 2019 (the mean error of weights).
    """
    given = given_points(module).count
    if given:
        found = [Decision("calibrate_mode", "max", f"the model brings {given} ranges along")]
        if layers := left_in_float(module):
            found.append(Decision("layers", layers, "the model leaves in float what they read"))
        return QConfig.recommended(**{one.field: one.value for one in found}), tuple(found)
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
        weights = [weight_of(call) for call, _ in calls]
        channels = sum(w.data.shape[0] for w in weights if w is not None and w.data.ndim)
        decisions += [
            Decision(
                "weight_scale",
                "mse",
                f"'max' would cut the largest weight of each of {channels} channels by 1/128",
            ),
            _rounding(samples, sequential_seconds(module)),
        ]
    wide = module.view(wide_inputs)
    why = "no layer multiplies: more bits cost little"
    decisions += [Decision(name, value, why) for name, value in wide.fields.items()]
    if wide.layers:
        decisions.append(Decision("layers", wide.layers, "; ".join(wide.why)))
    if calls and statistics is not None:
        plain = QConfig.recommended(**{one.field: one.value for one in decisions})
        decisions.append(_smoothing(module, statistics, samples, plain, gain))
    chosen = {d.field: d.value for d in decisions}
    return QConfig.recommended(**chosen), tuple(decisions)


def _smoothing(
    module: IRModule, statistics: ChannelStats, samples: int, plain: QConfig, gain: Gain
) -> Decision:
    """Decide by the predicted gain: more has to be gained where channels were seen seldom.

    Smoothing makes the channels that a layer reads even, and others uneven: of what the layer's
    weights multiply them by, and of tensors that only sums and norms read. Two networks of ten lose
    19 and 44 dB so, which the prediction shows and the spread of the channels does not.
    """
    groups = find_groups(module["main"])
    seen = 0.0
    for call, _ in weighted_calls(module["main"]):
        group = groups.group_of.get(call.args[0])
        if group is not None:
            size = call.args[0].tensor_type.num_elements
            seen = max(seen, statistics.runs * size / max(groups.sizes[group], 1))
    if not seen:
        return Decision("smooth_alpha", None, "no operator reads channels that take factors")
    if samples < _ENOUGH:
        why = "one sample says little of channels to come"
        return Decision("smooth_alpha", None, why)
    enough = 0.0 if samples >= _MANY and seen >= _SELDOM else _MUCH
    gained = gain(plain)
    told = f"even channels and less even weights are predicted to gain {gained:.1f} dB"
    if gained > enough:
        return Decision("smooth_alpha", SMOOTH_ALPHA, told)
    if enough:
        seldom = f", {enough:g} are enough over {samples} samples"
    else:
        seldom = ""
    return Decision("smooth_alpha", None, told + seldom)


def _rounding(samples: int, seconds: float) -> Decision:
    """Sequentially where there are enough samples to fit to, and where it does not take long."""
    value = "corrected"
    means = "biases make up for the means that rounded weights move"
    if samples < _ENOUGH:
        why = f"{means}; {samples} sample is too few to fit weights to, {_ENOUGH} are enough"
    elif seconds > MOST_SECONDS:
        why = (
            f"{means}; sequential rounding gains 1 to 6 dB in most networks and takes about "
            f"{seconds:.0f} CPU seconds here: --qconfig auto,weight_rounding=sequential"
        )
    else:
        value = "sequential"
        if seconds > FITTING_SECONDS:
            fitted = "weights"
        else:
            fitted = "weights and ranges"
        why = f"{fitted} layer by layer, fitted to what reads them on {samples} samples"
    return Decision("weight_rounding", value, why)
