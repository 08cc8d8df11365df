"""What chosen ranges cut off: the share of a tensor's energy that lies beyond its range.

calibrate_mode "kl_divergence" compares how often values occur, not how large they are. It gives up
rare large values (attention scores near 1), and on data of few distinct values, such as pixels, at
fewer than 8 bits it may keep hardly anything: one bin a level then looks like a perfect fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.garbage import collector_rests
from compiler.quantize.calibration.stats import NUM_BINS, CalibrationStats

MUCH = 0.01
"""Clipping alone then limits the SQNR of the tensor to 20 dB."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """A range that cuts off much.

    Attributes:
        label: of the tensor.
        share: lost energy, sum (|x| - S)^2 beyond S over sum x^2.
        range_share: S over max|x|.
    """

    label: str
    share: float
    range_share: float

    def __str__(self) -> str:
        return (
            f"{self.label}: its range ends at {self.range_share:.0%} of max|x|, which loses "
            f"{self.share:.1%} of the energy"
        )


def clipping_note(found: Sequence[Clipping], calibrate_mode: str) -> tuple[str, ...]:
    """One sentence for users that names the worst and what helps; nothing without any."""
    if not found:
        return ()
    count = "a tensor" if len(found) == 1 else f"{len(found)} tensors"
    return (
        f"calibrate_mode={calibrate_mode} cuts off much of {count}; worst {found[0]}; "
        "calibrate_mode=mse keeps large values that matter",
    )


@collector_rests
def heavily_clipped(
    stats: CalibrationStats, ranges: Sequence[float] | NDArray[np.float32], much: float = MUCH
) -> list[Clipping]:
    """Tensors that lose more than ``much`` of their energy beyond their range, worst first.

    Args:
        stats: with histograms, both rounds.
        ranges: as ``activation_scales`` gives them; only S of each point is looked at.
        much: share of sum x^2.
    """
    found: dict[int, Clipping] = {}
    for place, index in enumerate(stats.point_tensor):
        tensor = stats.tensor(int(index))
        bins = tensor.bins
        if bins is None or tensor.largest == 0:
            continue
        magnitude = np.abs(bins.keys - np.float64(NUM_BINS // 2)) * (2 * tensor.largest / NUM_BINS)
        beyond = np.maximum(magnitude - float(ranges[place]), 0.0)
        energy = float(bins.counts @ np.square(magnitude))
        share = float(bins.counts @ np.square(beyond)) / energy if energy > 0 else 0.0
        if share > much and (int(index) not in found or found[int(index)].share < share):
            reach = float(ranges[place]) / float(tensor.largest)
            found[int(index)] = Clipping(tensor.label, share, reach)
    return sorted(found.values(), key=lambda clipping: -clipping.share)
