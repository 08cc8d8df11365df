"""FQProductShape: how many products an operator sums, and where its output channels lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir.expr import Call
from compiler.ir.op import OpRule


@dataclass(frozen=True, slots=True)
class ProductShape:
    """A convolution or matrix product, as scales and overflow bounds see it.

    Attributes:
        terms: products summed into one output element.
        weight_axis: axis of the weight that runs over the output channels; None when the operator
            has no weight, or no one axis holds them.
        out_trailing: number of axes of the output behind its channel axis.
    """

    terms: int
    weight_axis: int | None = None
    out_trailing: int | None = None


FQProductShape: OpRule[Callable[[Call], ProductShape]] = OpRule(
    "FQProductShape", asked_by="QuantizeCalibrate and QuantizeRealize"
)
"""``rule(call)`` for a call over typed arguments, the call itself typed too."""
