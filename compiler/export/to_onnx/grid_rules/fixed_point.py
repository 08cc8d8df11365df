"""The rounded fixed-point product x * M * 2^-n exactly, and float32 forms proven equal to it.

A float32 product fl(x * a) never decreases with x, and neither does rounding it. Two such step
functions are equal on all x as soon as they step at the same places, so it is enough to compare
them on both sides of every step of the definition:

    x_k = smallest x with round(x * M * 2^-n) >= k        k = lowest + 1 .. highest

    R(fl(x_k * a)) >= k   and   R(fl((x_k - 1) * a)) <= k - 1   for all k

Where a = fl(M * 2^-n) fails, because a product lands exactly on a tie in float32, one of its
neighbours nearly always holds. What is proven here is what the exported graph computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.ops.rules.float_product import MAX_STEPS, Floats, Ints, Ties, same_as_float_product

DOUBLE_BITS = 53
"""Whole numbers of so many bits are exact in double."""


@dataclass(frozen=True, slots=True)
class Factor:
    """x → round(x * multiplier * 2^-shift), per channel.

    Ties go "up" toward plus infinity, "away" from zero or to the "even" neighbour. Both arrays have
    one shape, which broadcasts against the tensor; multipliers lie in [-2^31, 2^31).
    """

    multiplier: Ints
    shift: Ints
    ties: Ties = "up"

    @staticmethod
    def of(multiplier: ArrayLike, shift: ArrayLike, ties: Ties = "up") -> Factor:
        """A factor from numbers or arrays whose shapes broadcast."""
        m, n = np.broadcast_arrays(np.asarray(multiplier, np.int64), np.asarray(shift, np.int64))
        return Factor(m, n, ties)

    def apply(self, x: ArrayLike) -> Ints:
        """f of whole numbers, in exact arithmetic.

        Raises:
            OverflowError: a product of 2^62 or more.
        """
        wide = np.asarray(x, np.int64)
        if int(np.abs(wide).max(initial=0)) * int(self.multiplier.max(initial=0)) >= 1 << 62:
            raise OverflowError("a fixed-point product leaves 64 bits")
        product = wide * self.multiplier
        half = np.left_shift(np.int64(1), np.clip(self.shift - 1, 0, 62))
        held = np.clip(self.shift, 0, 63)
        if self.ties == "even":
            rounded = (product + half - 1 + (product >> held & 1)) >> held
        else:
            sign = np.where((self.ties == "away") & (product < 0), -1, 1)
            rounded = sign * ((sign * product + half) >> held)
        exact = product << np.clip(-self.shift, 0, 62)
        return np.asarray(np.where(self.shift > 0, rounded, exact))

    def bounds(self, low: int, high: int) -> tuple[int, int]:
        """Smallest and largest result for low <= x <= high."""
        ends = self.apply(low), self.apply(high)  # a negative multiplier exchanges them
        return int(min(end.min() for end in ends)), int(max(end.max() for end in ends))

    @property
    def odd_parts(self) -> Ints:
        """The multipliers without their factors of two; 0 for 0."""
        return np.asarray(self.multiplier // np.maximum(self.multiplier & -self.multiplier, 1))

    @property
    def significant_bits(self) -> int:
        """Largest width of an odd part of a multiplier."""
        return int(np.abs(self.odd_parts).max(initial=0)).bit_length()

    @property
    def powers_of_two(self) -> Ints | None:
        """k where every factor is 2^-k with k >= 0, else None."""
        if self.ties == "away" or np.any(self.odd_parts != 1):
            return None
        _, exponents = np.frexp(self.multiplier.astype(np.float64))
        bits = np.asarray(self.shift - (exponents - 1))
        return bits if bits.min() >= 0 else None

    def may_tie(self, magnitude: int) -> bool:
        """True when x * multiplier * 2^-shift can end in exactly one half for |x| <= magnitude."""
        _, exponents = np.frexp((self.multiplier & -self.multiplier).astype(np.float64))
        bits = self.shift - 1 - (exponents - 1)
        needed = np.left_shift(np.int64(1), np.clip(bits, 0, 62))
        return bool(np.any((self.multiplier != 0) & (bits >= 0) & (needed <= magnitude)))

    def real(self) -> NDArray[np.float64]:
        """The factors as double, exactly."""
        return np.ldexp(self.multiplier.astype(np.float64), -self.shift.astype(np.int32))


@dataclass(frozen=True, slots=True)
class FloatForm:
    """Round(x * factor), or with an addend Floor or Round of (x * factor + addend), in float32."""

    factor: Floats
    addend: Floats | None
    floor: bool
    fused: bool = False
    """Also right where a fused multiply-add does not round the product by itself."""


def plain_product_holds(factor: Factor, x_low: Ints, x_high: Ints, low: int, high: int) -> bool:
    """True where Round(x * factor) in float32 is right; arguments of ``proven_float_form``."""
    multiplier, shift = factor.multiplier.reshape(-1), factor.shift.reshape(-1)
    if multiplier.min(initial=0) < 0:
        return False
    same = same_as_float_product(multiplier, shift, factor.ties, x_low, x_high, (low, high))
    return bool(same.all())


def proven_float_form(
    factor: Factor, x_low: Ints, x_high: Ints, low: int, high: int, prefer_round: bool = False
) -> FloatForm | None:
    """A float32 form that equals the definition for every x in [x_low, x_high] after a clip to
    [low, high]; None when none of the tried ones does.

    Args:
        factor: the definition.
        x_low: smallest operand, magnitude below 2^24; one for all channels, or one per channel.
        x_high: largest operand, likewise.
        low: bound that the result is clipped to, or cannot leave.
        high: likewise.
        prefer_round: Floor costs more than Round with an addend.
    """
    if high - low > MAX_STEPS or max(-low, high) >= MAX_STEPS:
        return None
    if not prefer_round and plain_product_holds(factor, x_low, x_high, low, high):
        return FloatForm(factor.real().astype(np.float32), None, False)
    # Steps are found in int64: (2 k - 1) 2^(n - 1) has to fit.
    largest_shift = 63 - (2 * max(-low, high) + 1).bit_length()
    if factor.shift.min() < 1 or factor.shift.max() > largest_shift or factor.multiplier.min() <= 0:
        return None
    search = _Search(factor, _steps(factor, low, high), low, x_low, x_high)
    form = search.run(False, None, False)
    if form is not None:
        # What is right with and without rounding of the product is right without, so it comes next.
        return search.run(False, None, True) or form
    tries = [(True, _FLOOR_ADDENDS), (False, _ROUND_ADDENDS)]
    for floor, addends in reversed(tries) if prefer_round else tries:
        form = search.run(floor, addends, False)
        if form is not None:
            return form
    return None


def _offsets(center: float) -> Floats:
    """``center`` and values around it, nearest first; float32 at 64 .. 127 is 2^-17 apart."""
    distances = sorted(range(-12, 13), key=lambda d: (abs(d), -d))
    return np.asarray([center + d * 2.0**-19 for d in distances], np.float32)


_FLOOR_ADDENDS = _offsets(0.5)
_ROUND_ADDENDS = _offsets(0.0)
# Neighbours tried on either side of the factor; further ones only move other steps.
_NEIGHBOURS = 4
# Only steps this close to a tie can be moved by a neighbour or an addend; counted per channel.
_CRITICAL_STEPS = 24
_CHANNELS_AT_ONCE = 16


class _Search:
    """Per channel, the first (factor, addend) that steps where the definition does."""

    def __init__(self, factor: Factor, steps: Ints, low: int, x_low: Ints, x_high: Ints) -> None:
        self.shape = factor.multiplier.shape
        self.factors = _neighbours(factor.real().astype(np.float32).reshape(-1))
        x_low, x_high = (np.asarray(bound).reshape(-1, 1) for bound in (x_low, x_high))
        # A step outside the operand's range is never taken.
        self.out_of_reach = steps > x_high
        self.below_range = steps <= x_low
        self.at = np.clip(steps, x_low, x_high).astype(np.float32)
        self.before = np.clip(steps - 1, x_low, x_high).astype(np.float32)
        self.levels = np.arange(low + 1, low + 1 + steps.shape[1]).astype(np.float32)
        exact = factor.real().reshape(-1, 1)
        beyond = np.abs(steps * exact - (self.levels.astype(np.float64) - 0.5))
        distance = np.minimum(beyond, np.abs(exact - beyond))
        distance[self.out_of_reach | self.below_range] = np.inf
        count = min(_CRITICAL_STEPS, steps.shape[1])
        self.critical = np.argpartition(distance, count - 1, axis=1)[:, :count]

    def run(self, floor: bool, addends: Floats | None, fused: bool) -> FloatForm | None:
        """The form for all channels, or None when a channel has none.

        ``fused`` asks for factors that are right with and without rounding of the product.
        """
        offsets = np.zeros(1, np.float32) if addends is None else addends
        channels = np.arange(self.at.shape[0])
        chosen = self.factors[:, 0].copy()
        added = np.full_like(chosen, offsets[0])
        left = channels[~self._on_critical_steps(channels, offsets[:1], 1, floor, fused)[:, 0, 0]]
        for start in range(0, left.size, _CHANNELS_AT_ONCE):
            part = left[start : start + _CHANNELS_AT_ONCE]
            good, which_factor, which_addend = self._candidates(part, offsets, floor, fused)
            if not good.all():
                return None
            chosen[part] = self.factors[part, which_factor]
            added[part] = offsets[which_addend]
        # The search looked at critical steps only; the proof looks at all of them.
        if not self._holds(chosen, added, floor, fused):
            return None
        vector = None if addends is None else added.reshape(self.shape)
        return FloatForm(chosen.reshape(self.shape), vector, floor, fused)

    def _candidates(
        self, channels: Ints, offsets: Floats, floor: bool, fused: bool
    ) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """(found, index of factor, index of addend), judged by each channel's critical steps."""
        neighbours = self.factors.shape[1]
        holds = self._on_critical_steps(channels, offsets, neighbours, floor, fused)
        # Addends vary slowest: an addend near the plain one moves fewer steps.
        good = np.swapaxes(holds, 1, 2).reshape(channels.size, -1)
        first = good.argmax(axis=1)
        return np.asarray(good.any(axis=1)), first % neighbours, first // neighbours

    def _on_critical_steps(
        self, channels: Ints, offsets: Floats, neighbours: int, floor: bool, fused: bool
    ) -> NDArray[np.bool_]:
        """(channels, factors, addends): which of the first factors and the addends hold there."""
        rows, picked = channels[:, None], self.critical[channels]
        factors = self.factors[channels, :neighbours][:, :, None, None]
        addends = offsets[None, None, :, None]
        levels = self.levels[picked][:, None, None, :]
        out_of_reach = self.out_of_reach[rows, picked][:, None, None, :]
        below_range = self.below_range[rows, picked][:, None, None, :]
        good = np.ones((channels.size, neighbours, offsets.size), bool)
        for exact in (False, True) if fused else (False,):
            at, before = (
                _stepped(x[rows, picked][:, None, None, :], factors, addends, floor, exact)
                for x in (self.at, self.before)
            )
            reached, not_yet = (at >= levels) | out_of_reach, (before < levels) | below_range
            good &= (reached & not_yet).all(axis=3)
        return good

    def _holds(self, factor: Floats, addend: Floats, floor: bool, fused: bool) -> bool:
        """The proof: the result steps where the definition does, at every step of all channels."""
        scale, offset = factor[:, None], addend[:, None]
        for exact in (False, True) if fused else (False,):
            at = _stepped(self.at, scale, offset, floor, exact)
            before = _stepped(self.before, scale, offset, floor, exact)
            reached = (at >= self.levels) | self.out_of_reach
            not_yet = (before < self.levels) | self.below_range
            if not (reached & not_yet).all():
                return False
        return True


def _stepped(x: Floats, factor: Floats, addend: Floats, floor: bool, exact: bool) -> Floats:
    """What onnxruntime computes: every operation rounds to float32 once, or (``exact``) a fused
    multiply-add rounds to whole numbers only; a product of two float32 is exact in double."""
    if exact:
        wide = x.astype(np.float64) * factor
        return np.asarray(np.rint(wide, out=wide), np.float32)
    result: Floats = x * factor + addend
    return np.floor(result, out=result) if floor else np.rint(result, out=result)


def _steps(factor: Factor, low: int, high: int) -> Ints:
    """(channels, steps): the smallest x with result >= k, for k = low + 1 .. high."""
    k = np.arange(low + 1, high + 1, dtype=np.int64)
    multiplier, shift = factor.multiplier.reshape(-1, 1), factor.shift.reshape(-1, 1)
    edges = (2 * k - 1) << (shift - 1)
    reaches = -(-edges // multiplier)
    if factor.ties == "up":
        return np.asarray(reaches)
    # A tie that does not rise to k puts the step strictly above the edge.
    rises = k > 0 if factor.ties == "away" else k % 2 == 0
    return np.where(rises, reaches, edges // multiplier + 1)


def _neighbours(base: Floats) -> Floats:
    """(channels, candidates): the factors and the float32 values next to them, nearest first."""
    found = [base]
    up = down = base
    for _ in range(_NEIGHBOURS):
        up = np.nextafter(up, np.float32(np.inf))
        down = np.nextafter(down, np.float32(0))
        found.extend((up, down))
    return np.stack(found, axis=1)
