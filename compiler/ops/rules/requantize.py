"""Bringing integers from one scale to another: clip, shift, or fixed-point product.

Equal scales need a clip only, ratios that are powers of two a shift, all others a product with a
multiplier of 31 bits and a shift. Sources: Relay v0.10 quantize/realize.cc; Jacob et al., 2018,
section 2.2 (gemmlowp); scales per channel are our addition.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr
from compiler.ops.qnn.requantize import TFLM, rescaled
from compiler.ops.rules import integer_calls
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.float_product import Ties, nearest_float_factors
from compiler.ops.rules.integer_calls import along_axis, cast, clip, maximum, minimum, worth
from compiler.ops.rules.realize import (
    WIDE_INPUT,
    Pair,
    QRealizeIntExpr,
    first_that_holds,
    input_dtypes,
    integer_limits,
    integers,
    storage_dtype,
    wide_bits,
    zero_point_for,
)
from compiler.ops.rules.table import RealTable
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.qtypes.qconfig import QConfig

Ints = NDArray[np.int64]

TIES: dict[str, Ties] = {"UPWARD": "up", "TONEAREST": "away", "TONEAREST_EVEN": "even"}
"""Direction of halves, by QConfig.rounding."""

SUM_SHIFT: Final = 20
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


def tflm_multiplier(factor: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """``multiplier_and_shift``; (0, 0) for factors so small that the shift is below -31."""
    multiplier, shift = multiplier_and_shift(factor)
    gone = shift < -31
    return np.where(gone, 0, multiplier), np.where(gone, 0, shift)


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
    """``data`` * multiplier * 2^(shift - 31), a requantization without limits.

    Args:
        multiplier, shift: of rank 0, or one per channel.
        trailing: axes of ``data`` behind the channel axis; None for a single factor.
        rank: of ``data``.
        ties: as ``qnn.requantize`` has them.
        dtype: of ``data`` and of the result.
        scales: of ``data`` and of the result, which carry them; a cast without effect holds the
            first until it is merged.
    """
    if scales is not None:
        data = worth(cast(data, dtype), scales[0])
    shift = np.where(multiplier == 0, 0, np.maximum(shift, -63))
    exact = ties in ("up", "floor", TFLM) or bool((multiplier == POWER_OF_TWO).all())
    work = dtype if exact and ties != "away" else "int64"
    kinds = {"rounding": ties, "compute_dtype": work, "out_dtype": dtype}
    if trailing is None:
        made = integer_calls.requantize(data, multiplier=int(multiplier), shift=int(shift), **kinds)
    else:
        made = integer_calls.requantize(data, multiplier, shift, axis=rank - trailing - 1, **kinds)
    if scales is None:
        return made
    return worth(made, scales[1])


def within_contract(bound: int, factor: NDArray[np.float32]) -> bool:
    """True when no |d| <= bound overflows ``requantized``: |d * factor| stays below 2^31."""
    with np.errstate(invalid="ignore"):  # 0 times infinity
        return bool((bound * np.asarray(factor, np.float64) < 2.0**31 - 1).all())


# ---- the step between two scales -----------------------------------------------------------------


def requantize(
    value: QRealizeIntExpr, out: DomScale, low: float, high: float, rank: int, qconfig: QConfig
) -> QRealizeIntExpr:
    """The integers at the scalar scale ``out``, clipped to [low, high], in the dtype they had or,
    where that is too small, in the accumulator's.

    Args:
        value: integers at a scalar scale or one scale per channel.
        low, high: clip bounds in units of ``out``.
        rank: of the tensor.
    """
    limits = integer_limits("int32")
    clipped = (max(math.trunc(low), limits[0]), min(math.trunc(high), limits[1]))
    if value.table is not None and not out.is_vector:
        return _at_another_scale(value, value.table, out, clipped, qconfig)
    step = _Step(value, out, qconfig, clipped)
    merged = _absorb_channel_clip(value, step, clipped)
    if merged is not None:
        source, (low, high) = merged
        step = step.of(source)
    return step.result(rank, (low, high))


def _at_another_scale(
    value: QRealizeIntExpr,
    table: RealTable,
    out: DomScale,
    clipped: tuple[int, int],
    qconfig: QConfig,
) -> QRealizeIntExpr:
    """A table again, stored narrow where its entries allow: one rounding instead of two."""
    shift = zero_point_for(*clipped, qconfig)
    narrow = storage_dtype(clipped[0] + shift, clipped[1] + shift, qconfig)
    dtype = narrow or value.dtype
    data = table.at(float(out.values), *clipped, dtype, shift)
    return integers(data, out, dtype, value.bounds_of, table=table, zero_point=shift)


def lost_by_truncation(value: QRealizeIntExpr, out: DomScale, qconfig: QConfig) -> DomScale | None:
    """Return the subtrahend of real values with which rounding gives the result of ``requantize``.

    A shift by n without half added is a floor: floor(d / 2^n) = round((d - (2^n - 1) / 2) / 2^n),
    and the argument is never halfway between two integers.

    Returns:
        (scale after - scale before) / 2, per channel as the value's scale, where bits are shifted
        out; None where ``requantize`` rounds.
    """
    if qconfig.round_for_shift or (value.table is not None and not out.is_vector):
        return None
    step = _Step(value, out, qconfig)
    if step.same or step.shifts is None or not (step.shifts > 0).any():
        return None
    lost = np.where(step.shifts > 0, (out.values - value.dom_scale.data) / np.float32(2), 0)
    if value.trailing is None:
        trailing = out.trailing
    else:
        trailing = value.trailing
    return DomScale(as_scale(lost), trailing)


def to_scalar(value: QRealizeIntExpr, rank: int, qconfig: QConfig) -> QRealizeIntExpr:
    """A value with one scale per channel at the smallest of its scales, or as fine a one as the
    accumulator holds; others as they are.

    No clip is needed: the integers keep two bits below the accumulator's, which sums take up.
    """
    if value.trailing is None:
        return value
    largest = float(value.dom_scale.data.max())
    smallest = float(value.dom_scale.data.min())
    room = (integer_limits(qconfig.dtype_activation)[1] >> 2) // max(value.bound, 1)
    finer = min(math.ceil(math.log2(largest / smallest)), max(room, 1).bit_length() - 1)
    out = DomScale(as_scale(np.ldexp(largest, -finer)))
    return _Step(value, out, qconfig).result(rank, None)


def to_fewer_bits(
    value: QRealizeIntExpr, nbit: int, rank: int, qconfig: QConfig
) -> QRealizeIntExpr:
    """A value at a scalar scale that has at most so many bits, as coarse as they make it."""
    if value.high - value.low < 1 << nbit:
        return value
    limit = 1 << (nbit - 1)
    acc = qconfig.dtype_activation
    fewer = (value.bound - 1).bit_length() - (nbit - 1)
    out = DomScale(as_scale(np.ldexp(value.scale.values, fewer)))
    wide = value.like(value.in_dtype(acc), dtype=acc)
    return requantize(wide, out, -limit, limit - 1, rank, qconfig)


def within_accumulator(
    pair: Pair, terms: int, ranks: tuple[int, int], qconfig: QConfig, *, narrow: bool = False
) -> Pair:
    """Two values whose products add up within the accumulator: the wider has fewer bits, as far as
    it takes. A model may bring along points of 16 bits on both sides; most pairs stay as they are.

    Args:
        pair: at scalar scales.
        terms: products in a sum.
        ranks: of the two tensors.
        narrow: both are stored in 16 bits at most.
    """
    limit = integer_limits(qconfig.dtype_activation)[1]
    nbits = [v.bound.bit_length() + 1 for v in pair]

    def ends(place: int) -> tuple[int, int]:
        value = pair[place]
        half = 1 << (nbits[place] - 1)
        if value.high - value.low < 2 * half:
            return (value.low, value.high)
        return (-half, half - 1)

    def is_wide(place: int) -> bool:
        dtypes = (*input_dtypes(qconfig), WIDE_INPUT)
        return narrow and first_that_holds(*ends(place), dtypes) is None

    while True:
        bounds = [max(map(abs, ends(place))) for place in (0, 1)]
        wider = int(bounds[1] > bounds[0])
        fits_all = terms * math.prod(bounds) <= limit and not is_wide(0) and not is_wide(1)
        if fits_all or nbits[wider] <= _FEWEST:
            break
        nbits[wider] -= 1
    lhs, rhs = (
        value if value.trailing is not None else to_fewer_bits(value, nbit, rank, qconfig)
        for value, nbit, rank in zip(pair, nbits, ranks, strict=True)
    )
    return lhs, rhs


_FEWEST: Final = 8
"""Bits below which no operand of a product goes: a longer sum is refused."""


class _Step:
    """One requantization: which of the three ways it takes, as nodes and on numbers."""

    def __init__(
        self,
        value: QRealizeIntExpr,
        out: DomScale,
        qconfig: QConfig,
        clipped: tuple[int, int] | None = None,
    ) -> None:
        self.value = value
        self.qconfig = qconfig
        scales = value.dom_scale.data
        self.same = bool((scales == out.values).all())
        self.out = out
        if clipped is None or qconfig.is_relay:
            self.nbit = 0
        else:
            self.nbit = wide_bits(*clipped)
        self.rounds_twice = qconfig.form.rounds_twice
        if self.rounds_twice:
            # Scales of 12 bits: the double of TFLM's own preparation.
            self.factor: NDArray[Any] = scales.astype(np.float64) / out.values.astype(np.float64)
            self.shifts: Ints | None = None
            return
        with np.errstate(over="ignore"):
            self.factor = as_scale(scales / out.values)
            shifts = exact_log2(as_scale(out.values / scales))
        one_way = shifts is not None and bool((shifts >= 0).all() or (shifts <= 0).all())
        self.shifts = shifts if one_way else None
        is_product = self.shifts is None and not self.same
        if is_product and clipped is not None and qconfig.requantization == "float_product":
            if value.channel_clip is None:
                widest = value
            else:
                widest = value.channel_clip.source
            reach = widest.low, widest.high
            self.factor = nearest_float_factors(self.factor, TIES[qconfig.rounding], reach, clipped)

    def of(self, value: QRealizeIntExpr) -> _Step:
        """The same step of other integers at the same scale."""
        step = copy.copy(self)
        step.value = value
        return step

    def result(self, rank: int, bounds: tuple[float, float] | None) -> QRealizeIntExpr:
        """The graph; ``bounds`` are the final clip, None for none."""
        if self.same:
            return self._finish(self.value.data, self.value.dtype, bounds)
        if self.shifts is None:
            return self._product(rank, bounds)
        if (self.shifts >= 0).all():
            return self._shift_right(self.shifts, rank, bounds)
        return self._shift_left(-self.shifts, rank, bounds)

    def _shift_right(
        self, shifts: Ints, rank: int, bounds: tuple[float, float] | None
    ) -> QRealizeIntExpr:
        value = self.value
        acc = self.qconfig.dtype_activation
        most = int(shifts.max())
        if self.qconfig.round_for_shift and most:
            half = 1 << (most - 1)
        else:
            half = 0
        work = acc
        width = integer_limits(acc)[1].bit_length()
        if value.bound + half > integer_limits(acc)[1] or most > width:
            work = "int64"
        # From 62 on every int32, half added, shifts to 0.
        return self._scaled(value.data, 1 - np.minimum(shifts, 62), work, rank, bounds)

    def _shift_left(
        self, shifts: Ints, rank: int, bounds: tuple[float, float] | None
    ) -> QRealizeIntExpr:
        value = self.value
        acc = self.qconfig.dtype_activation
        work = acc
        if value.bound << int(shifts.max()) > integer_limits(acc)[1]:
            work = "int64"
            # Whatever is not 0 is clipped anyway once it has left 32 bits.
            shifts = np.minimum(shifts, 62 - value.bound.bit_length())
        return self._scaled(value.data, 1 + shifts, work, rank, bounds)

    def _scaled(
        self,
        data: Expr,
        shift: Ints,
        work: str,
        rank: int,
        bounds: tuple[float, float] | None,
        multiplier: Ints | None = None,
    ) -> QRealizeIntExpr:
        """The requantization of data; without a multiplier by powers of two."""
        if self.value.dtype != work:
            data = cast(data, work)
        if multiplier is None:
            multiplier = np.full_like(shift, POWER_OF_TWO)
        trailing = self.value.trailing
        scales = (self.value.scale, self.out)
        if self.qconfig.is_relay and self.shifts is None and self._ties != "up":
            work = "int32"  # Relay's product to the nearest ends in a cast, which the clip follows
        made = requantized(
            data,
            multiplier,
            shift,
            trailing,
            rank,
            self._ties,
            work,
            None if self.qconfig.is_relay else scales,
        )
        return self._finish(made, work, bounds)

    @property
    def _ties(self) -> str:
        if self.rounds_twice:
            return TFLM
        if self.shifts is None:
            return TIES[self.qconfig.rounding]
        if not self.qconfig.round_for_shift:
            return "floor"
        if self.qconfig.rounding == "TONEAREST_EVEN":
            return "even"
        return "up"

    def _product(self, rank: int, bounds: tuple[float, float] | None) -> QRealizeIntExpr:
        value = self.value
        if self.rounds_twice:
            multiplier, shift = tflm_multiplier(self.factor)
            return self._scaled(value.data, shift, "int32", rank, bounds, multiplier)
        data: Expr = value.data
        factor = self.factor
        if not within_contract(value.bound, factor):
            assert bounds is not None, "a requantization without a clip only makes values smaller"
            # Values this large end at the clip bounds; beyond 2^31 the product would wrap.
            data = cast(data, "int64")
            reach = max(-bounds[0], bounds[1])
            factor = np.minimum(factor, np.float32(2.0**30))
            limit = np.maximum(np.ceil(reach / factor.astype(np.float64)), 1).astype(np.int64)
            if value.trailing is None:
                data = clip(data, -int(limit), int(limit))
            else:
                ceiling = along_axis(limit, value.trailing, "int64")
                floor = along_axis(-limit, value.trailing, "int64")
                data = maximum(minimum(data, ceiling), floor)
        multiplier, shift = multiplier_and_shift(factor)
        return self._scaled(data, shift, "int64", rank, bounds, multiplier)

    def _finish(self, data: Expr, work: str, bounds: tuple[float, float] | None) -> QRealizeIntExpr:
        if bounds is not None and not self._is_within(bounds):
            data = clip(data, *bounds)
            if self.nbit:
                data = worth(data, self.out, bits=self.nbit)
        made = integers(data, self.out, work, self.value.bounds_of)
        dtype = self.value.dtype
        if self.nbit and not self.rounds_twice:
            dtype = WIDE_INPUT
        if not made.fits(dtype):  # more bits than the narrow integers had so far
            dtype = self.qconfig.dtype_activation
        return made.like(made.in_dtype(dtype), dtype=dtype)

    def _is_within(self, bounds: tuple[float, float]) -> bool:
        """Return whether the integers stay as they are and a clip would change none of them."""
        if not self.same or self.qconfig.is_relay:
            return False
        return bounds[0] <= self.value.low and self.value.high <= bounds[1]

    def apply(self, values: Ints) -> Ints:
        """The step on numbers, one per channel, before the final clip."""
        if self.same:
            return values
        if self.rounds_twice:
            return rescaled(values, *tflm_multiplier(self.factor), TFLM)
        if self.shifts is None:
            return rescaled(values, *multiplier_and_shift(self.factor), self._ties)
        powers = np.full_like(self.shifts, POWER_OF_TWO)
        return rescaled(values, powers, 1 - np.clip(self.shifts, -30, 62), self._ties)


def _absorb_channel_clip(
    value: QRealizeIntExpr, step: _Step, clipped: tuple[int, int]
) -> tuple[QRealizeIntExpr, tuple[int, int]] | None:
    """Move a clip per channel behind the requantization, when it is one clip there.

    Requantization never decreases as its input grows, so it commutes with clipping. When the
    bounds of all channels land on the same pair of integers, that pair replaces the final bounds.
    With 16 bits rounding keeps them apart by a step or two: the middle one is as near to the limit.
    """
    held = value.channel_clip
    if held is None or step.same:
        return None
    if not within_contract(held.source.bound, step.factor):
        return None
    low = np.clip(step.apply(held.low), *clipped)
    high = np.clip(step.apply(held.high), *clipped)
    if np.ptp(low) or np.ptp(high):
        return None
    return held.source, (int(np.median(low)), int(np.median(high)))
