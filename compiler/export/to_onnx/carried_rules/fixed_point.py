"""The rounded fixed-point product x * M * 2^-n exactly, and where a float32 product equals it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.ops.rules.float_product import MAX_STEPS, Ints, Ties, same_as_float_product

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


def plain_product_holds(factor: Factor, x_low: Ints, x_high: Ints, low: int, high: int) -> bool:
    """True where Round(x * factor) in float32 equals the definition for every x in [x_low, x_high],
    one or one per channel, after a clip to [low, high]."""
    if high - low > MAX_STEPS or max(-low, high) >= MAX_STEPS:
        return False
    multiplier, shift = factor.multiplier.reshape(-1), factor.shift.reshape(-1)
    if multiplier.min(initial=0) < 0:
        return False
    same = same_as_float_product(multiplier, shift, factor.ties, x_low, x_high, (low, high))
    return bool(same.all())
