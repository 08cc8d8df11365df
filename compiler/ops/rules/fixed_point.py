"""Multiplying integers by real factors: exact powers of two, and Q31 multiplier and shift.

Source: Relay v0.10 quantize/realize.cc; Jacob et al., 2018, section 2.2 (gemmlowp).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Expr
from compiler.ops.rules.float_product import Ties
from compiler.ops.rules.integer_calls import (
    add,
    along_axis,
    bitwise_and,
    cast,
    fixed_point_multiply,
    fixed_point_multiply_per_axis,
    fixed_point_rescale,
    left_shift,
    multiply,
    right_shift,
    where_not_negative,
)

Ints = NDArray[np.int64]

TIES: dict[str, Ties] = {"UPWARD": "up", "TONEAREST": "away", "TONEAREST_EVEN": "even"}
"""Where halves go, by QConfig.rounding."""

SUM_SHIFT: Final = {"int8": 20, "int16": 15}
"""Bits by which TFLM's ADD and SUB make their operands finer before they scale them."""


def exact_log2(factor: NDArray[np.float32]) -> Ints | None:
    """log2 of every factor, or None unless each is an integer once rounded to float32."""
    with np.errstate(divide="ignore"):
        logs = np.log2(np.asarray(factor, np.float64)).astype(np.float32)
    if not np.isfinite(logs).all() or (logs != np.rint(logs)).any():
        return None
    return logs.astype(np.int64)


def multiplier_and_shift(factor: NDArray[Any]) -> tuple[Ints, Ints]:
    """(M, e) with factor = M * 2^(e - 31) and M in [2^30, 2^31); (0, 0) for a factor of 0.

    Args:
        factor: float32 or float64, any shape, not negative.
    """
    fraction, exponent = np.frexp(np.asarray(factor, np.float64))
    multiplier = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    exponent = exponent.astype(np.int64)
    full = multiplier == 1 << 31
    multiplier = np.where(full, 1 << 30, multiplier)
    exponent = np.where(multiplier == 0, 0, np.where(full, exponent + 1, exponent))
    return multiplier, exponent


def scaled_by_tflm(
    data: Expr,
    factor: NDArray[np.float64],
    trailing: int | None,
    rank: int,
    scale: float = 0.0,
    once: bool = False,
) -> Expr:
    """``data * factor`` as TFLM rounds it; ``data`` are int32.

    Args:
        factor: rank 0, or one factor per channel.
        trailing, rank: as of ``scaled``.
        scale: what a step of the result is worth, where that is known.
        once: as it rounds products of int16.
    """
    axis = None if trailing is None else rank - trailing - 1
    return fixed_point_rescale(data, *tflm_multiplier(factor, once), axis, scale, once)


def tflm_multiplier(factor: NDArray[np.float64], once: bool = False) -> tuple[Ints, Ints]:
    """``multiplier_and_shift``; (0, 0) for factors so small that the shift is below -31.

    Args:
        once: for products of int16: the multiplier has 15 digits and is the nearest one.
    """
    multiplier, shift = multiplier_and_shift(factor)
    gone = shift < -31
    if once:
        multiplier = np.minimum((multiplier + (1 << 15)) >> 16, (1 << 15) - 1) << 16
    return np.where(gone, 0, multiplier), np.where(gone, 0, shift)


def scaled(
    data: Expr, factor: NDArray[np.float32], trailing: int | None, rank: int, rounding: str
) -> Expr:
    """``data * factor`` as nodes.

    UPWARD is one fixed_point_multiply in the dtype of ``data``, half toward plus infinity.
    TONEAREST is int64 arithmetic ending in a cast to int32, half away from zero, TONEAREST_EVEN
    half to the even neighbour.

    Args:
        factor: rank 0, or one factor per channel.
        trailing: axes of ``data`` behind the channel axis; None for a single factor.
        rank: of ``data``.
    """
    multiplier, shift = multiplier_and_shift(factor)
    if rounding == "UPWARD":
        if trailing is None:
            return fixed_point_multiply(data, int(multiplier), int(shift))
        return fixed_point_multiply_per_axis(data, multiplier, shift, rank - trailing - 1)

    def constant(values: Ints) -> Expr:
        return along_axis(values, trailing, "int64")

    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    # |product| <= 2^62, so from a shift by 63 on the added half decides alone.
    right = np.minimum(right, 32)
    wide: Expr = cast(data, "int64")
    if left.any():
        wide = left_shift(wide, constant(left))
    product = multiply(wide, constant(multiplier))
    if rounding == "TONEAREST_EVEN":
        return cast(shifted_to_even(product, 31 + right, trailing, "int64"), "int32")
    half = np.left_shift(np.int64(1), 30 + right)
    rounded = add(product, where_not_negative(product, constant(half), constant(half - 1)))
    return cast(right_shift(rounded, constant(31 + right)), "int32")


def shifted_to_even(data: Expr, shifts: Ints, trailing: int | None, dtype: str) -> Expr:
    """``data * 2^-shifts`` as nodes, halves to the even neighbour:

        (data + 2^(n-1) - 1 + ((data >> n) & 1)) >> n        n > 0; n = 0 changes nothing

    Args:
        shifts: 0 and more, rank 0 or one per channel.
        trailing: axes of ``data`` behind the channel axis; None for a single shift.
        dtype: of ``data``.
    """
    amount = along_axis(shifts, trailing, dtype)
    odd = bitwise_and(right_shift(data, amount), along_axis(shifts > 0, trailing, dtype))
    below_half = along_axis(_below_half(shifts), trailing, dtype)
    return right_shift(add(add(data, below_half), odd), amount)


def to_even_values(values: Ints, shifts: Ints) -> Ints:
    """What ``shifted_to_even`` computes, on numbers."""
    odd = np.right_shift(values, shifts) & (shifts > 0)
    return np.asarray(np.right_shift(values + _below_half(shifts) + odd, shifts))


def _below_half(shifts: Ints) -> Ints:
    held = np.maximum(shifts, 1)
    return np.asarray(np.where(shifts > 0, np.left_shift(np.int64(1), held - 1) - 1, 0))


def scaled_values(values: Ints, factor: NDArray[np.float32], rounding: str) -> Ints:
    """What ``scaled`` computes, on numbers: used where a bound must be known exactly."""
    multiplier, shift = multiplier_and_shift(factor)
    left, right = np.maximum(shift, 0), np.minimum(np.maximum(-shift, 0), 32)
    product = np.left_shift(values, left) * multiplier
    if rounding == "TONEAREST_EVEN":
        return to_even_values(product, 31 + right)
    half = np.left_shift(np.int64(1), 30 + right)
    if rounding != "UPWARD":
        half = np.where(product >= 0, half, half - 1)
    return np.asarray(np.right_shift(product + half, 31 + right))


def within_contract(bound: int, factor: NDArray[np.float32]) -> bool:
    """True when no |d| <= bound overflows ``scaled``: |d * factor| stays below 2^31."""
    with np.errstate(invalid="ignore"):  # 0 times infinity
        return bool((bound * np.asarray(factor, np.float64) < 2.0**31 - 1).all())
