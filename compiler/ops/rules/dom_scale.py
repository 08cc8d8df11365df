"""DomScale, and FQDomScale: the scale of an operator's integer result, from the operands' scales.

Calibration asks it to find the scale of the accumulator that a bias is added to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Dataflow
from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpRule
from compiler.qtypes.qconfig import QConfig

SMALLEST_RANGE: Final = 2.0**-48
"""Values of a smaller magnitude are quantized to zeros: the product of two finer scales could fall
below the normal float32 numbers, and the quotient of two scales beyond the largest one."""
FINEST: Final = np.float32(2.0**-24)
"""Share of the larger of two scales: a finer one is not common to both in 32 bits."""
_OF_ONE_SCALE: Final = ("cast", "add", "subtract", "maximum", "minimum", "concatenate")
"""Binary digits of the scales that may be chosen, by QConfig.requantization."""


@dataclass(frozen=True, slots=True, eq=False)
class DomScale:
    """real value = integer * scale.

    Attributes:
        values: float32, rank 0, or rank 1 with one scale per channel; of a single channel it is
            rank 0, so that the value may be broadcast over channels.
        trailing: number of axes behind the channel axis; None when ``values`` has rank 0.
        wide: the integers are an accumulator's, of a finer step than their precision needs.
    """

    values: NDArray[np.float32]
    trailing: int | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        if self.values.ndim and self.values.size == 1:
            object.__setattr__(self, "values", self.values.reshape(()))
            object.__setattr__(self, "trailing", None)

    @property
    def is_vector(self) -> bool:
        """True for one scale per channel."""
        return self.trailing is not None

    def same_axis(self, other: DomScale) -> bool:
        """True when the two can be combined element by element."""
        return not (self.is_vector and other.is_vector) or (
            self.trailing == other.trailing and self.values.shape == other.values.shape
        )

    def __mul__(self, other: DomScale) -> DomScale:
        """Scale of a product, rounded to float32; both sides have the same axis or none."""
        return DomScale(np.multiply(self.values, other.values), _axis(self, other), wide=True)

    def smaller(self, other: DomScale) -> DomScale:
        """The smaller scale of each channel, but at least 2^-24 of the larger one.

        At a still finer scale the coarse operand would not fit into 32 bits, and the fine one does
        not gain: 2^-24 of the coarse step is lost in the sum.
        """
        finest = np.minimum(self.values, other.values)
        coarsest = np.maximum(self.values, other.values)
        return DomScale(np.maximum(finest, coarsest * FINEST), _axis(self, other), wide=True)

    def over(self, divisor: int) -> DomScale:
        """The scale divided by an integer, rounded to float32."""
        values = as_scale(self.values.astype(np.float64) / divisor)
        return DomScale(values, self.trailing, self.wide or divisor > 1)


def chosen_scale(values: Any, qconfig: QConfig) -> NDArray[np.float32]:
    """``values`` > 0 as a scale that may be chosen freely: with ``requantization`` "power_of_two"
    the next power of two that is not below, with "tflite" the next of 12 bits, so that float32
    holds the product of two; else as they are."""
    scale = as_scale(values)
    digits = qconfig.form.scale_digits
    if digits is None:
        return scale
    fraction, exponent = np.frexp(scale)
    return as_scale(np.ldexp(np.ceil(np.ldexp(fraction, digits)), exponent - digits))


def beside_constant(scale: DomScale) -> DomScale:
    """Return the scale of a sum of narrow integers and a constant in a module for TFLM: 2^-8 of
    theirs, which no rounding brings them to."""
    return DomScale(as_scale(scale.values * np.float32(2.0**-8)), scale.trailing, wide=True)


def as_scale(values: Any) -> NDArray[np.float32]:
    """``values`` as a float32 array of rank 0 or 1; the largest float32 for those beyond it."""
    return np.asarray(np.minimum(values, np.finfo(np.float32).max), dtype=np.float32)


def _axis(lhs: DomScale, rhs: DomScale) -> int | None:
    if lhs.is_vector:
        return lhs.trailing
    return rhs.trailing


Scales = tuple[DomScale | None, ...]
"""Scales of the operands; None where one is unknown."""

ScaleRule = Callable[[Call, Scales, QConfig], DomScale | None]
"""``rule(call, scales of the operands, qconfig)``: None when it cannot be told from them."""

FQDomScale: OpRule[ScaleRule] = OpRule("FQDomScale", asked_by="QuantizeCalibrate")


def same_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The scale of the first operand: moving, selecting or bounding elements changes no units."""
    return scales[0]


def moved_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The scale of the first operand, one for all channels: elements move between channels."""
    scale = scales[0]
    if scale is None or not scale.is_vector:
        return scale
    return DomScale(as_scale(scale.values.max()), wide=scale.wide)


def keeps_scale(op: Expr) -> bool:
    """True for an operator that gives integers of its first operand, in the units of these."""
    return FQDomScale.get(op) in (same_scale, moved_scale)


def carry_scales(flow: Dataflow) -> None:
    """Give each value the scale of the integers that it is made of, where it carries none and all
    elements have one; O(values). Integers that are added or compared have one scale."""
    for step in flow.steps:
        if step.name in _OF_ONE_SCALE:
            read = step.args
        else:
            read = step.args[: keeps_scale(step.op)]
        quant = next((arg.quant for arg in read if arg.quant is not None), None)
        if quant is not None and quant.of_tensor is not None:
            for value in step.results:
                value.quant = value.quant or quant


def product_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The product of the operands' scales."""
    lhs, rhs = scales
    if lhs is None or rhs is None or not lhs.same_axis(rhs):
        return None
    return lhs * rhs
