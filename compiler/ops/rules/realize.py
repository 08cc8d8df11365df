"""FQRealizeRewrite: what an operator computes on integers, and with which scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InternalQuantizeError
from compiler.ir.expr import Call, Constant, Expr, describe
from compiler.ir.op import OpRule
from compiler.ir.temp_expr import TempExpr
from compiler.ir.ty import bits, is_float
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.integer_calls import along_axis, cast, multiply
from compiler.ops.rules.table import RealTable
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.errors import IntegerOverflowError

RealizeRule = Callable[[Call, tuple[Expr, ...], QuantizeContext], Expr | None]
"""``rule(ref_call, new_args, ctx)``: the integer form, or None to run the float operator."""

FQRealizeRewrite: OpRule[RealizeRule] = OpRule("FQRealizeRewrite", asked_by="QuantizeRealize")


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
    """real value = data * dom_scale, with ``data`` an integer tensor in ``dtype``.

    Attributes:
        data: integers; right behind an input quantization they are still held in float32.
        dom_scale: float32 constant, rank 0, or rank 1 with one scale per channel.
        dtype: of ``data``.
        trailing: number of axes behind the channel axis; None when dom_scale has rank 0.
        low, high: bounds that ``data`` keeps for every input of the model; what a rule of one's
            own makes without saying is taken to be an accumulator within 2^30.
        channel_clip: set when ``data`` is a clip with a bound per channel.
        table: set when ``data`` is a lookup: the function it was made of.
    """

    data: Expr
    dom_scale: Constant
    dtype: str
    trailing: int | None = None
    low: int = -(1 << 30)
    high: int = 1 << 30
    channel_clip: ChannelClip | None = None
    table: RealTable | None = None

    def realize(self) -> Expr:
        """Back to real values: multiply(cast(data, float32), dom_scale)."""
        scale = self.dom_scale
        if self.trailing is not None:
            scale = along_axis(scale.data, self.trailing, "float32")
        return multiply(cast(self.data, "float32"), scale)

    @property
    def scale(self) -> DomScale:
        """dom_scale with the axis it runs along."""
        return DomScale(self.dom_scale.data, self.trailing)

    @property
    def bound(self) -> int:
        """max |data|."""
        return max(-self.low, self.high)


def integers(
    data: Expr, scale: DomScale, dtype: str, low: int, high: int, **more: Any
) -> QRealizeIntExpr:
    """A QRealizeIntExpr whose values lie in [low, high]."""
    return QRealizeIntExpr(
        data, Constant(scale.values), dtype, scale.trailing, low=low, high=high, **more
    )


def like(value: QRealizeIntExpr, data: Expr, **changed: Any) -> QRealizeIntExpr:
    """``value`` with other data; scale, dtype and range stay unless given."""
    fields: dict[str, Any] = {
        "dtype": value.dtype,
        "trailing": value.trailing,
        "low": value.low,
        "high": value.high,
        **changed,
    }
    return QRealizeIntExpr(data, fields.pop("dom_scale", value.dom_scale), **fields)


def both_realized(args: tuple[Expr, ...]) -> tuple[QRealizeIntExpr, QRealizeIntExpr] | None:
    """The two integer operands of a binary operator, or None unless both are integer."""
    lhs, rhs = args
    if isinstance(lhs, QRealizeIntExpr) and isinstance(rhs, QRealizeIntExpr):
        return lhs, rhs
    return None


def cast_if_needed(value: QRealizeIntExpr, dtype: str) -> Expr:
    """The data in ``dtype``."""
    return value.data if value.dtype == dtype else cast(value.data, dtype)


def narrowed(value: QRealizeIntExpr, dtype: str, ref_call: Call) -> Expr:
    """``cast(data, dtype)`` whose values provably fit.

    Raises:
        InternalQuantizeError: they might not; a wrapping cast would change the numbers (R-18).
    """
    check_fits(value, dtype, ref_call)
    return cast(value.data, dtype)


def fits(value: QRealizeIntExpr, dtype: str) -> bool:
    """True when every value is one of ``dtype``."""
    low, high = integer_limits(dtype)
    return low <= value.low and value.high <= high


def check_fits(value: QRealizeIntExpr, dtype: str, ref_call: Call) -> None:
    """Refuse to narrow integers that may lie outside ``dtype``.

    Raises:
        InternalQuantizeError: see ``narrowed``.
    """
    if not fits(value, dtype):
        raise InternalQuantizeError(
            f"values from {value.low} to {value.high} would be cast to {dtype} without a clip",
            where=describe(ref_call),
            fix="the annotate rule of the producer should give kind ACTIVATION",
            span=ref_call.span,
        )


def integer_limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of a signed integer dtype; float32 counts as int32."""
    width = 32 if is_float(dtype) else bits(dtype)
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def require_fits(bound: int, dtype: str, ref_call: Call) -> None:
    """Refuse a sum that could leave the accumulator for some input of the model.

    Raises:
        IntegerOverflowError: |sum| may reach ``bound``, more than ``dtype`` holds.
    """
    limit = integer_limits(dtype)[1]
    if bound > limit:
        raise IntegerOverflowError(
            f"{describe(ref_call)}: |sum| can reach {bound}, more than {dtype} holds ({limit})",
            where=None if ref_call.checked_type_or_none is None else f"{ref_call.checked_type}",
            fix="use fewer bits (nbit_input, nbit_weight) or a wider dtype_activation, "
            "or leave the layer in float",
            span=ref_call.span,
        )
