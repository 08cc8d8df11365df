"""FQProductShape: how many products an operator sums, and where its output channels lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.rules.axes import RESULT, FAxes


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


@FQProductShape.register("nn.conv2d", "nn.dense")
def weighted_shape(call: Call) -> ProductShape:
    """All of the weight but its output channels is summed; FAxes says where these lie."""
    axes = FAxes.require(call.op)(call)
    assert axes is not None
    data, weight = (arg.tensor_type for arg in call.args[:2])
    rows = axes.weight_axis(call, RESULT)
    terms = weight.num_elements // max(1, weight.concrete_shape[rows])
    return ProductShape(terms, rows, len(data.shape) - 1 - axes.own[RESULT])
