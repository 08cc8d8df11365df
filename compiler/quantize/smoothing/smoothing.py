"""Smoothing: the spread between the channels of an activation moves into the weights it meets.

    before                                   after, s per channel, > 0
    %1 = add(multiply(%0, gamma), beta);     %1 = add(multiply(%0, gamma * s), beta * s);
    nn.dense(%1, w)                          nn.dense(%1, w / s[1,I])

s = (range of the weight's channel)^(1 - alpha) / (range of the activation's channel)^alpha, the
latter measured on calibration data. With alpha = 1 all channels of the activation get one range,
with alpha = 0 all columns of the weights. What is in front of the activation must be able to take
up s (ops/rules/axes.py); the function stays the same.

No factor passes a clip as of relu6: it would change what is cut off.
Source: Xiao et al., "SmoothQuant: accurate and efficient post-training quantization for large
language models", 2022, section 4; weights count in units of their row's range, since rows may have
scales of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from compiler.ir.module import IRModule
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.quantize.scales.weight_grid import range_on_few_levels
from compiler.quantize.smoothing.channel_groups import ChannelGroups, Factors, find_groups
from compiler.quantize.weighted_calls import weight_of, weighted_calls

_FLOOR: Final = 2.0**-10
"""A channel's range counts as at least this part of the largest; data hardly seen says little."""
_UNSEEN: Final = -1.0
"""Range of a channel that no measured operator reads."""


def smooth(
    mod: IRModule,
    ranges: Sequence[ChannelRanges],
    alpha: float,
) -> tuple[IRModule, list[ChannelRanges]]:
    """The smoothed module, and ``ranges`` as they are in it.

    Args:
        mod: result of ``prerequisite_optimize``, float32.
        ranges: of the data of each weighted operator, in visiting order.
        alpha: 0 to 1.
    """
    groups = find_groups(mod["main"])
    factors = smoothing_factors(groups, mod, ranges, alpha)
    told = []
    for (call, _), one in zip(weighted_calls(mod["main"]), ranges, strict=True):
        group = groups.group_of.get(call.args[0])
        told.append(one if group is None else one.times(factors[group]))
    return groups.rescaled(mod, factors), told


def smoothing_factors(
    groups: ChannelGroups,
    mod: IRModule,
    ranges: Sequence[ChannelRanges],
    alpha: float,
) -> list[Factors]:
    """Factors of each group, geometric mean 1; 1 where no measured operator reads the group, and
    where one has weights on a grid of its own."""
    data = {call: r.largest for (call, _), r in zip(weighted_calls(mod["main"]), ranges)}
    activation = [np.full(size, _UNSEEN) for size in groups.sizes]
    weight = [np.zeros(size) for size in groups.sizes]
    kept = [False for _ in groups.sizes]
    for bridge in groups.bridges:
        if bridge.before is None or bridge.call not in data:
            continue
        group = bridge.before
        weight[group] = np.maximum(weight[group], bridge.proportions())
        activation[group] = np.maximum(activation[group], data[bridge.call])
        held = weight_of(bridge.call)
        kept[group] |= held is not None and range_on_few_levels(held.data, 8, 0) is not None
    factors = groups.ones()
    for group, largest in enumerate(activation):
        seen = largest != _UNSEEN
        if kept[group] or not seen.any():
            continue
        exponent = (1 - alpha) * np.log(_floored(weight[group])) - alpha * np.log(_floored(largest))
        factors[group][seen] = np.exp(exponent - exponent[seen].mean())[seen]
    return factors


def _floored(values: Factors) -> Factors:
    largest = float(values.max(initial=0.0))
    return np.maximum(values, (largest or 1.0) * _FLOOR)
