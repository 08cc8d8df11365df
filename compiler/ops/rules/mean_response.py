"""FQMeanResponse: the mean output of a weighted operator from the mean of its data.

Calibration measures the data of operators with this rule channel by channel; bias correction asks
what an error of the weight adds to the output on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule

Vector = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MeanResponse:
    """A weighted operator, linear in data (operand 0) and weight (operand 1).

    Attributes:
        data_axis: channel axis of the data.
        respond: ``respond(weight, means) -> output means``: weight of the operator's own shape, one
            mean per input channel, one result per output channel, float64. Positions that read
            padding read 0; otherwise a channel is taken to be as large everywhere.
    """

    data_axis: int
    respond: Callable[[NDArray[Any], Vector], Vector]


FQMeanResponse: OpRule[Callable[[Call], MeanResponse | None]] = OpRule(
    "FQMeanResponse", asked_by="channel statistics and bias correction (compiler/quantize)"
)
"""``rule(call)`` for a typed call; None for layouts it does not know."""
