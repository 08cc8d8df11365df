"""Cross-layer equalization: ranges of channels are evened out between a weight and the next ones.

    before                                   after, s per channel, > 0
    %0 = nn.conv2d(%x, w0);                  %0 = nn.conv2d(%x, w0 * s[O,1,1,1]);
    %1 = nn.relu(add(%0, b0));               %1 = nn.relu(add(%0, b0 * s));
    nn.conv2d(%1, w1)                        nn.conv2d(%1, w1 / s[1,I,1,1])

s makes the range of every channel of w0 equal to that of the same channel of w1. Neighbours are
evened out in turn until nothing moves. The function stays the same; no data is needed. A residual
stream counts as one value with several weights on either side. Clips with a limit and operators
that do not commute with factors end a stretch (ops/rules/channel_factors.py).
Source: Nagel et al., "Data-free quantization through weight equalization and bias correction",
2019, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from compiler.ir.module import IRModule
from compiler.quantize._channel_groups import Bridge, ChannelGroups, Factors, find_groups

_SWEEPS: Final = 40
_STILL: Final = 1e-3
"""Largest change of log(factor) in a sweep that counts as none."""

_LIMIT: Final = 2.0**16
"""Factors lie between its inverse and it; a channel with almost no weight asks for more."""


def equalize(mod: IRModule, through_concat: bool = False) -> IRModule:
    """The module with the ranges of its weights evened out; itself where nothing can move.

    Args:
        mod: result of ``prerequisite_optimize``, float32.
        through_concat: factors pass concatenations.
    """
    groups = find_groups(mod["main"], through_concat)
    return groups.rescaled(mod, equalizing_factors(groups))


def equalizing_factors(groups: ChannelGroups) -> list[Factors]:
    """Factors of each group, geometric mean 1; 1 for channels without weight on either side."""
    factors = groups.ones()
    into: list[list[Bridge]] = [[] for _ in groups.sizes]
    out_of: list[list[Bridge]] = [[] for _ in groups.sizes]
    for bridge in groups.bridges:
        if bridge.after is not None:
            into[bridge.after.group].append(bridge)
        if bridge.before is not None:
            out_of[bridge.before.group].append(bridge)
    for _ in range(_SWEEPS):
        largest = 0.0
        for group, (sources, sinks) in enumerate(zip(into, out_of, strict=True)):
            if not sources or not sinks:
                continue
            old = factors[group]
            written, read = np.zeros(old.size), np.zeros(old.size)
            for bridge in sources:
                assert bridge.after is not None
                np.maximum.at(written, bridge.after.places, _written(bridge, factors))
            for bridge in sinks:
                assert bridge.before is not None
                np.maximum.at(read, bridge.before.places, _read(bridge, factors))
            factors[group] = _balanced(old, written, read)
            largest = max(largest, float(np.abs(np.log(factors[group] / old)).max(initial=0.0)))
        if largest < _STILL:
            break
    return factors


def _balanced(factors: Factors, written: Factors, read: Factors) -> Factors:
    """``factors`` changed so that both ranges agree, up to a common factor of the channels."""
    alive = (written > 0) & (read > 0)
    if not alive.any():
        return factors
    step = np.sqrt(read[alive] / written[alive])
    new = factors.copy()
    new[alive] *= step / np.exp(np.log(step).mean())
    return np.clip(new, 1 / _LIMIT, _LIMIT)


def _written(bridge: Bridge, factors: Sequence[Factors]) -> Factors:
    """Range of the scaled weight for each channel of the result."""
    assert bridge.after is not None
    rows = bridge.magnitudes
    if rows.ndim == 2:
        rows = (rows if bridge.before is None else rows / bridge.before.of(factors)).max(axis=1)
    elif bridge.before is not None:
        rows = rows / bridge.before.of(factors)
    return rows * bridge.after.of(factors)


def _read(bridge: Bridge, factors: Sequence[Factors]) -> Factors:
    """Range of the scaled weight for each channel of the data, the largest being 1.

    Weights of different layers have scales of their own, so only proportions count.
    """
    assert bridge.before is not None
    columns = bridge.magnitudes
    if columns.ndim == 2:
        scaled = columns if bridge.after is None else columns * bridge.after.of(factors)[:, None]
        columns = scaled.max(axis=0)
    elif bridge.after is not None:
        columns = columns * bridge.after.of(factors)
    columns = columns / bridge.before.of(factors)
    largest = columns.max(initial=0.0)
    return columns / largest if largest > 0 else columns
