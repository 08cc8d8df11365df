"""FQRealizeRewrite: what an operator computes on integers, and with which scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InternalQuantizeError
from compiler.ir.expr import Args, Call, Constant, Expr, TempExpr, describe, is_op_call
from compiler.ir.ty import bits, integer_range, is_float
from compiler.ir.walk import behind
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.integer_calls import (
    add,
    along_axis,
    cast,
    multiply,
    scalar,
    subtract,
    worth,
)
from compiler.ops.rules.table import RealTable
from compiler.ops.rules.with_tables import QuantizeRule, Rule
from compiler.qtypes.context import BoundsOf, QuantizeContext
from compiler.qtypes.errors import IntegerOverflowError
from compiler.qtypes.qconfig import QConfig

FQRealizeRewrite = QuantizeRule("FQRealizeRewrite", asked_by="QuantizeRealize")
"""The integer form; without one the float operator runs."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelClip:
    """A clip with bounds per channel that a following requantization may absorb.

    Attributes:
        source: the integers in front of the clip, and their range.
        low, high: int64 bounds, one per channel, in units of ``source``.
    """

    source: QRealizeIntExpr
    low: NDArray[np.int64]
    high: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QRealizeIntExpr(TempExpr):
    """real value = (data + addend - zero_point) * dom_scale, with ``data`` integers in ``dtype``.

    Attributes:
        data: integers; right behind an input quantization they are still held in float32.
        dom_scale: float32 constant, rank 0, or rank 1 with one scale per channel.
        dtype: of ``data``.
        trailing: number of axes behind the channel axis; None when dom_scale has rank 0.
        bounds_of: ``QuantizeContext.bounds_of``.
        channel_clip: set when ``data`` is a clip with a bound per channel.
        table: set when ``data`` is a lookup: the function it was made of.
        zero_point: the integer that stands for 0 in narrow integers; part of ``data``.
        addend: constants that an accumulator still lacks, in its dtype and a shape that
            broadcasts; a bias that follows takes them in.
    """

    data: Expr
    dom_scale: Constant
    dtype: str
    bounds_of: BoundsOf
    trailing: int | None = None
    channel_clip: ChannelClip | None = None
    table: RealTable | None = None
    zero_point: int = 0
    addend: Expr | None = None

    def realize(self) -> Expr:
        """Back to real values: multiply(cast(data, float32), dom_scale)."""
        scale = self.dom_scale
        if self.trailing is not None:
            scale = along_axis(scale.data, self.trailing, "float32")
        value = cast(self.settled().data, "float32")
        if self.zero_point:
            value = subtract(value, scalar(self.zero_point, "float32"))
        return multiply(value, scale)

    @property
    def scale(self) -> DomScale:
        """dom_scale with the axis it runs along."""
        return DomScale(self.dom_scale.data, self.trailing)

    @property
    def low(self) -> int:
        """min data, for every input of the model."""
        return self.bounds_of(self.data)[0]

    @property
    def high(self) -> int:
        """max data, for every input of the model."""
        return self.bounds_of(self.data)[1]

    @property
    def bound(self) -> int:
        """max |data|."""
        return max(-self.low, self.high)

    def like(self, data: Expr, **changed: Any) -> QRealizeIntExpr:
        """A value of other data; scale, zero point and dtype stay unless given."""
        own = {"channel_clip": None, "table": None, "addend": None}
        return replace(self, data=data, **(own | changed))

    def in_dtype(self, dtype: str) -> Expr:
        """The data in ``dtype``, cast where they are not."""
        if self.dtype == dtype:
            return self.data
        return cast(self.data, dtype)

    def fits(self, dtype: str) -> bool:
        """True when every value is one of ``dtype``."""
        low, high = integer_limits(dtype)
        return low <= self.low and self.high <= high

    def check_fits(self, dtype: str, ref_call: Call) -> None:
        """Refuse to narrow integers that may lie outside ``dtype``.

        Raises:
            InternalQuantizeError: a wrapping cast would change the numbers.
        """
        if not self.fits(dtype):
            raise InternalQuantizeError(
                f"values from {self.low} to {self.high} would be cast to {dtype} without a clip",
                where=describe(ref_call),
                fix="the annotate rule of the producer should give kind ACTIVATION",
                span=ref_call.span,
            )

    def narrowed(self, dtype: str, ref_call: Call) -> Expr:
        """``cast(data, dtype)`` whose values provably fit.

        Raises:
            InternalQuantizeError: see ``check_fits``.
        """
        self.check_fits(dtype, ref_call)
        return cast(self.data, dtype)

    def is_narrow(self, qconfig: QConfig) -> bool:
        """True if its integers have no more bits than those between operators."""
        return bits(self.dtype) <= bits(qconfig.dtype_input)

    def settled(self) -> QRealizeIntExpr:
        """The value with its addend, if it has one, added."""
        if self.addend is None:
            return self
        return self.like(add(self.data, self.addend))

    def centred(self, dtype: str) -> QRealizeIntExpr:
        """The value without addend and zero point: 0 stands for 0.

        Args:
            dtype: what integers with a zero point are widened to.
        """
        value = self.settled()
        if self.zero_point == 0:
            return value
        data = subtract(value.in_dtype(dtype), scalar(self.zero_point, dtype))
        return value.like(data, dtype=dtype, zero_point=0)

    def with_zero_point(self, qconfig: QConfig) -> QRealizeIntExpr:
        """The value, shifted where dtype_input holds its range only with a zero point."""
        if self.zero_point:
            shift = 0
        else:
            shift = zero_point_for(self.low, self.high, qconfig)
        if shift == 0:
            return self
        moved = worth(add(self.data, scalar(shift, self.dtype)), self.scale, shift)
        return self.like(moved, zero_point=shift)


def can_be_stored(data: Expr) -> bool:
    """Return whether a requantization gives the data, which can take in a stop_fusion."""
    _, source = behind(data, ("cast", "clip", "add", "subtract"))
    return is_op_call(source, "qnn.requantize")


def of_integers(
    rule: Callable[[Call, QRealizeIntExpr, QuantizeContext], Expr | None],
) -> Rule:
    """The rule of an operator of one operand, which runs in float where that is no integers."""

    def realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
        (data,) = args
        if isinstance(data, QRealizeIntExpr):
            return rule(ref_call, data, ctx)
        return None

    return realize


def integers(
    data: Expr, scale: DomScale, dtype: str, bounds_of: BoundsOf, **more: Any
) -> QRealizeIntExpr:
    """A QRealizeIntExpr at a scale."""
    return QRealizeIntExpr(data, Constant(scale.values), dtype, bounds_of, scale.trailing, **more)


Pair = tuple[QRealizeIntExpr, QRealizeIntExpr]


def both_realized(args: Args) -> Pair | None:
    """The two integer operands of a binary operator, or None unless both are integer."""
    lhs, rhs = args
    if isinstance(lhs, QRealizeIntExpr) and isinstance(rhs, QRealizeIntExpr):
        return lhs, rhs
    return None


WIDE_INPUT = "int16"
"""Dtype of the inputs of single layers that have more bits than dtype_input holds."""


def storage_dtype(low: int, high: int, qconfig: QConfig) -> str | None:
    """The narrow dtype that holds low .. high: dtype_input, or unsigned with the same bits.

    None where they are too wide for both; unsigned is there with an ``activation_scheme`` other
    than "symmetric" only. Where ``layers`` ask for more bits, int16 is there too.
    """
    candidates = [*input_dtypes(qconfig)]
    if qconfig.most_input_bits > bits(qconfig.dtype_input):
        candidates.append(WIDE_INPUT)
    return first_that_holds(low, high, candidates)


def input_dtypes(qconfig: QConfig) -> tuple[str, ...]:
    """The dtypes that inputs are stored in without more bits."""
    signed = qconfig.dtype_input
    if qconfig.activation_scheme == "symmetric":
        return (signed,)
    return (signed, f"u{signed}")


def first_that_holds(low: int, high: int, dtypes: Iterable[str]) -> str | None:
    """The first of the dtypes that holds low .. high; None where none does."""
    for dtype in dtypes:
        lowest, highest = integer_limits(dtype)
        if lowest <= low and high <= highest:
            return dtype
    return None


def zero_point_for(low: int, high: int, qconfig: QConfig) -> int:
    """Return the addend with which dtype_input holds low .. high; 0 where none is needed.

    Only ``activation_scheme`` "asymmetric" stores integers with a zero point.
    """
    if qconfig.activation_scheme != "asymmetric":
        return 0
    if first_that_holds(low, high, input_dtypes(qconfig)) is not None:
        return 0
    lowest, highest = integer_limits(qconfig.dtype_input)
    if high - low <= highest - lowest:
        return lowest - low
    return 0


def wide_bits(low: float, high: float) -> int:
    """Bits of a signed integer within low .. high where they are 9 to 16; 0 for others."""
    most = int(max(-low, high)).bit_length() + 1
    if 1 << 8 <= high - low < 1 << 16:
        return min(most, 16)
    return 0


def integer_limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype; float32 counts as int32."""
    return integer_range("int32" if is_float(dtype) else dtype)


def require_fits(bound: int, dtype: str, ref_call: Call) -> None:
    """Refuse a sum that could leave the accumulator for some input of the model.

    Raises:
        IntegerOverflowError: |sum| may reach ``bound``, more than ``dtype`` holds.
    """
    limit = integer_limits(dtype)[1]
    if bound > limit:
        fewer = (-(-bound // limit) - 1).bit_length()
        if bits(dtype) < 32:
            wider = ' or dtype_activation="int32",'
        else:
            wider = ""
        raise IntegerOverflowError(
            f"{describe(ref_call)}: |sum| can reach {bound}, more than {dtype} holds ({limit})",
            where=None if ref_call.checked_type_or_none is None else f"{ref_call.checked_type}",
            fix=f"use at least {fewer} bits fewer in the two factors together (nbit_input, "
            f"nbit_weight, or those of this layer in layers),{wider} or leave the layer in float",
            span=ref_call.span,
        )
