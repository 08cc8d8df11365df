"""Multiplying integers by real factors: exact powers of two, and Q31 multiplier and shift.

Source: Relay v0.10 quantize/realize.cc; Jacob et al., 2018, section 2.2 (gemmlowp).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr
from compiler.ops.qnn.requantize import TFLM, rescaled
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.float_product import Ties
from compiler.ops.rules.integer_calls import cast, requantize, worth
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO

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


def rescaled_by_tflm(values: Ints, multiplier: Ints, shift: Ints, once: bool = False) -> Ints:
    """The product with the numbers of ``tflm_multiplier``; with ``once`` in more than 32 bits."""
    if not once:
        return rescaled(values, multiplier, shift, "tflm")
    return (values * multiplier + (np.int64(1) << (30 - shift))) >> (31 - shift)


def scaled(
    data: Expr,
    factor: NDArray[np.float32],
    trailing: int | None,
    rank: int,
    rounding: str,
    dtype: str = "int64",
    scales: tuple[DomScale, DomScale] | None = None,
) -> Expr:
    """``data * factor``, a requantization without limits, in the dtype of ``data``.

    Args:
        factor: rank 0, or one factor per channel.
        trailing: axes of ``data`` behind the channel axis; None for a single factor.
        rank: of ``data``.
        rounding: as of QConfig: half up, away from zero, or to the even neighbour.
        dtype: of ``data``.
        scales: as of ``requantized``.
    """
    ties, factors = TIES[rounding], multiplier_and_shift(factor)
    return requantized(data, *factors, trailing, rank, ties, dtype, scales)


def requantized(
    data: Expr,
    multiplier: Ints,
    shift: Ints,
    trailing: int | None,
    rank: int,
    ties: str,
    dtype: str,
    scales: tuple[DomScale, DomScale] | None = None,
) -> Call:
    """``scaled`` by multiplier * 2^(shift - 31); ``ties`` as ``qnn.requantize`` has them.

    Args:
        scales: of ``data`` and of the result, which carry them; a cast without effect holds the
            first until it is merged.
    """
    if scales is not None:
        data = worth(cast(data, dtype), scales[0])
    shift = np.where(multiplier == 0, 0, np.maximum(shift, -63))
    exact = ties in ("up", "floor", *TFLM) or bool((multiplier == POWER_OF_TWO).all())
    work = dtype if exact and ties != "away" else "int64"
    kinds = {"rounding": ties, "compute_dtype": work, "out_dtype": dtype}
    if trailing is None:
        made = requantize(data, multiplier=int(multiplier), shift=int(shift), **kinds)
    else:
        made = requantize(data, multiplier, shift, axis=rank - trailing - 1, **kinds)
    return made if scales is None else worth(made, scales[1])


def within_contract(bound: int, factor: NDArray[np.float32]) -> bool:
    """True when no |d| <= bound overflows ``scaled``: |d * factor| stays below 2^31."""
    with np.errstate(invalid="ignore"):  # 0 times infinity
        return bool((bound * np.asarray(factor, np.float64) < 2.0**31 - 1).all())
