"""FQChannelFactors: how factors > 0, one per channel, pass an operator.

Smoothing multiplies the channels of a value by factors and takes them out again
further on. An operator either ties factors together (relu: what comes in goes out), or has a
constant that makes up for the difference between what comes in and what goes out (a convolution).
An operator without a rule lets no factor in or out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compiler.ir.expr import Call
from compiler.ir.op import OpRule

RESULT: Final = -1
"""Stands for the result where operands are given by their index."""

AxisPairs = Mapping[int, int]
"""Axis of an operand → the axis of the result that runs over the same channels."""


@dataclass(frozen=True, slots=True)
class Absorber:
    """A constant operand that is multiplied by the factors of one place, or divided by them.

    Attributes:
        operand: index of the constant.
        place: index of the operand whose factors count, or RESULT.
        trailing: axes of the constant behind the one over the channels; None: as many as ``place``
            has behind its channel axis.
        divides: the constant is divided.
    """

    operand: int
    place: int
    trailing: int | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class ChannelFactors:
    """What a call does to factors.

    Attributes:
        own: places with factors of their own (operand index or RESULT) → their channel axis.
        tied: operands that have the factors of the result.
        absorbers: what changes so that the call computes the same function.
    """

    own: Mapping[int, int] = field(default_factory=dict)
    tied: Mapping[int, AxisPairs] = field(default_factory=dict)
    absorbers: tuple[Absorber, ...] = ()


FQChannelFactors: OpRule[Callable[[Call], ChannelFactors | None]] = OpRule(
    "FQChannelFactors", asked_by="smoothing (compiler/quantize)"
)
"""``rule(call)`` for a typed call of a float module; None where no factor may pass."""
