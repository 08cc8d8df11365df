"""Fixed-point factors that one float32 product replaces, and the choice of such factors.

The definition round(x * M * 2^-n) and the product rint(fl(x * a)) never decrease with x. So they
agree on all x as soon as they agree on both sides of every place u where x * M * 2^-n is halfway
between two integers:

    (k - 1/2) 2^n / M = u        x = ceil(u) gives k, x = ceil(u) - 1 gives k - 1, and so for all k

Two roundings to float32 move a product by 2^-23 of itself at most, and where u is farther than that
from any whole number, they move it to no tie. What is left, a step in a hundred, is compared.

A factor taken as it comes agrees in four channels of five. One that is larger or smaller by a few
units in its last place nearly always does. Engines with real scales compute just this product,
onnxruntime's integer kernels among them: a module with such factors gives the same integers there.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Ties = Literal["up", "away", "even"]

EXACT = (1 << 24) - 1
"""Every integer of this magnitude and below is a float32."""
MAX_STEPS = 1 << 12
_LEVELS = 256
"""Results of 8 bits. No kernel with real scales writes more, and the search for factors whose
products take thousands of steps alike was a third of a transformer's `compile`."""

# Neighbours are tried ring after ring: four channels of five are through after the first. Of two
# as far away the larger comes first: what was meant to be a tie, as with 1/36, then goes away from
# zero as in the simulation.
_MOVES = [
    np.array(sorted({*range(near, far), *range(-far + 1, 1 - near)}, key=lambda d: (abs(d), -d)))
    for near, far in pairwise((0, 1, 2, 4, 9, 65))
]
_MOVES = [moves.astype(np.int32) for moves in _MOVES]
# Twice the error of two roundings, relative to the product; for operands up to EXACT that is at
# most 2 of their units.
_MARGIN = 2.0**-22
_BEYOND = 4
_LARGEST = 2.0**16
_AT_ONCE = 1 << 15
"""Products that are compared together."""
_FIRST_GROUPS = (8, 32, 128, 512, 2048)
"""Levels after which the channels that are left are gathered anew."""


def same_as_float_product(
    multiplier: Ints,
    shift: Ints,
    ties: Ties,
    x_low: ArrayLike,
    x_high: ArrayLike,
    limits: tuple[int, int],
) -> NDArray[np.bool_]:
    """Per channel: rint(fl(x * a)) is round(x * multiplier * 2^-shift), both clipped to ``limits``,
    for every whole x in [x_low, x_high]; a is the float32 nearest to multiplier * 2^-shift.

    Args:
        multiplier: one per channel; below zero, it is not compared, and held to differ.
        shift: one per channel; factors of 2^16 and more are not compared, and held to differ.
        ties: halves go up, away from zero or to the even neighbour.
        x_low, x_high: of magnitude EXACT at most; one for all channels, or one per channel.
        limits: smallest and largest result.
    """
    low, high = limits
    channels = multiplier.size
    lows, highs = np.empty((2, channels), np.int64)
    lows[:], highs[:] = np.asarray(x_low).reshape(-1), np.asarray(x_high).reshape(-1)
    if high - low > MAX_STEPS or max(-low, high) >= MAX_STEPS:
        return np.zeros(channels, bool)
    if max(-int(lows.min(initial=0)), int(highs.max(initial=0))) > EXACT:
        return np.zeros(channels, bool)
    same = np.ldexp(multiplier.astype(np.float64), -shift.astype(np.int32)) < _LARGEST
    same &= multiplier >= 0
    _compare_steps(multiplier, shift, ties, lows, highs, _levels(low, high), same)
    return same


def _compare_steps(
    multiplier: Ints,
    shift: Ints,
    ties: Ties,
    x_low: Ints,
    x_high: Ints,
    levels: Ints,
    same: NDArray[np.bool_],
) -> None:
    """Clear ``same`` of each channel whose float32 product takes the step to one of ``levels``
    elsewhere than the definition; see ``same_as_float_product``.
    """
    for part in np.split(levels, _FIRST_GROUPS):
        every = np.flatnonzero(same)
        for left in np.array_split(every, every.size * part.size // _AT_ONCE + 1):
            some = multiplier[left], shift[left]
            rows, steps = _near_ties(*some, x_low[left], x_high[left], part)
            rows = left[rows]
            ends = x_low[rows], x_high[rows]
            good = _steps_there(multiplier[rows], shift[rows], ties, *ends, steps)
            same[rows[~good]] = False


@functools.lru_cache(maxsize=64)
def _levels(low: int, high: int) -> Ints:
    """All steps between two results. A product's error grows with its magnitude, so that a channel
    that differs nearly always differs at the first levels, and the others need not be compared.
    """
    levels = np.arange(low + 1, high + 1)
    return levels[np.argsort(-np.abs(levels - 0.5), kind="stable")]


def _margin_of(multiplier: Ints) -> float:
    """Return the relative difference that the two roundings make in a product at most, or half as
    much again."""
    if int(multiplier.max(initial=0)) > EXACT:
        return _MARGIN
    return _MARGIN / 2


def _near_ties(
    multiplier: Ints, shift: Ints, x_low: Ints, x_high: Ints, steps: Ints
) -> tuple[Ints, Ints]:
    """(channels, levels k of ``steps``): the levels that rounding to float32 may move."""
    halves = steps - 0.5
    with np.errstate(divide="ignore", invalid="ignore"):  # a factor of 0 is never near a tie
        inverse = 1 / np.ldexp(multiplier.astype(np.float64), -shift.astype(np.int32))
        u = halves * inverse[:, None]
        distance = np.rint(u)
        distance -= u
        np.abs(distance, out=distance)
        np.abs(u, out=u)
        u += 1
        u *= _margin_of(multiplier)
        # Of one axis: that of two takes ten times as long.
        row, column = np.divmod(np.flatnonzero(distance <= u), halves.size)
    level = steps[column]
    u = (level - 0.5) * inverse[row]
    reached = (u >= x_low[row] - _BEYOND) & (u <= x_high[row] + _BEYOND)
    return row[reached], level[reached]


def _steps_there(
    multiplier: Ints, shift: Ints, ties: Ties, x_low: Ints, x_high: Ints, level: Ints
) -> NDArray[np.bool_]:
    """For single steps: the float32 product takes the step to ``level`` where the definition does.

    All of one length. The step is within reach, so that |multiplier * u| < 2^56.
    """
    factor = np.ldexp(multiplier.astype(np.float64), -shift.astype(np.int32)).astype(np.float32)
    # (2 k - 1) 2^(n - 1) is to be whole.
    more = np.maximum(1 - shift, 0)
    edges = (2 * level - 1) << (shift + more - 1)
    multiplier = multiplier << more
    rises = np.ones(level.shape, bool)
    if ties != "up":
        rises = level > 0 if ties == "away" else level % 2 == 0
    # A tie that does not rise to k puts the step strictly above the edge.
    step = np.where(rises, -(-edges // multiplier), edges // multiplier + 1)
    at = np.rint(np.clip(step, x_low, x_high).astype(np.float32) * factor)
    before = np.rint(np.clip(step - 1, x_low, x_high).astype(np.float32) * factor)
    # A step outside the operand's range is never taken.
    taken = (at >= level) | (step > x_high)
    not_yet = (before < level) | (step <= x_low)
    return np.asarray(taken & not_yet)


def nearest_float_factors(
    factor: Floats, ties: Ties, x_range: tuple[int, int], limits: tuple[int, int]
) -> Floats:
    """``factor`` with each channel moved to the nearest float32 that a float32 product replaces.

    A channel where none of the tried ones does keeps its factor: 64 to either side, a change of
    less than one part in 100,000. So do all channels of results that 8 bits do not hold.

    Args:
        factor: rank 0, or one per channel, not negative.
        ties: the definition's.
        x_range: smallest and largest operand.
        limits: bounds that the result is clipped to.
    """
    if limits[1] - limits[0] >= _LEVELS:
        return factor.astype(np.float32)
    reach = max(x_range[0], -EXACT), min(x_range[1], EXACT)
    found = _nearest(factor.astype(np.float32).tobytes(), ties, reach, limits)
    return np.frombuffer(found, np.float32).reshape(factor.shape).copy()


@functools.lru_cache(maxsize=512)  # candidates that differ in roundings only have equal factors
def _nearest(factor: bytes, ties: Ties, reach: tuple[int, int], limits: tuple[int, int]) -> bytes:
    """``nearest_float_factors`` of float32 bytes."""
    # A layer whose channels have equal weights has one factor. Bits of positive floats count them.
    chosen, channel = np.unique(np.frombuffer(factor, np.float32), return_inverse=True)
    left = np.flatnonzero((chosen > 0) & (chosen < _LARGEST))
    for moves in _MOVES:
        tried = np.maximum(chosen[left].view(np.int32)[:, None] + moves, 1).view(np.float32)
        fraction, exponent = np.frexp(tried.reshape(-1))
        multiplier = np.ldexp(fraction.astype(np.float64), 24).astype(np.int64)
        shift = 24 - exponent.astype(np.int64)
        good = same_as_float_product(multiplier, shift, ties, *reach, limits).reshape(tried.shape)
        found = good.any(axis=1)
        chosen[left[found]] = tried[found, good[found].argmax(axis=1)]
        left = left[~found]
        if not left.size:
            break
    return chosen[channel].tobytes()
