"""Metric "agreement": how often the highest output is that of the float model."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import declare, metrics
from workers.metrics.top_k import Fraction, answers, is_lone


class Agreement(Fraction):
    """Fraction of decisions equal to the float model's."""

    needs_labels = False
    needs_reference = True
    counted = "equal"

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count decisions that equal those of the float model; a lone number decides nothing."""
        assert reference is not None  # needs_reference
        if not is_lone(outputs[0].shape, outputs[0].dtype.name):
            self.add(state, answers(outputs[0]) == answers(reference[0]))


metrics.register("agreement")(Agreement())
declare(
    "agreement",
    "agreement",
    unit="%",
    interval="wilson",
    perfect=1.0,
    place=1,
    meaning="share of samples whose highest output is that of the float model",
    template="{:.2%}",
    loss=lambda sums: sums["total"] - sums["equal"],
)
