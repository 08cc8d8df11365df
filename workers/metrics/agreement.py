"""Metric "agreement": how often the highest output is that of the float model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import MetricError
from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import Measure, measures, metrics
from workers.metrics.top_k import answers


class Agreement:
    """Fraction of decisions equal to the float model's; first output of the model."""

    needs_labels = False
    needs_reference = True

    def init(self) -> State:
        return {"equal": 0.0, "total": 0.0}

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count decisions that equal those of the float model.

        Raises:
            MetricError: there is no reference.
        """
        if reference is None:
            raise MetricError("metric 'agreement' needs the float model's outputs")
        found, wanted = answers(outputs[0]), answers(reference[0])
        state["equal"] += float(np.count_nonzero(found == wanted))
        state["total"] += float(found.size)

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """None: the interval of a fraction follows from its value and the number of samples."""

    def result(self, state: Mapping[str, float]) -> float | None:
        return state["equal"] / state["total"] if state["total"] else None


metrics.register("agreement")(Agreement())
measures.register("agreement")(
    Measure(
        "agreement",
        "agreement",
        unit="%",
        interval="wilson",
        perfect=1.0,
        place=1,
        meaning="share of samples that get the same answer as from the float model",
        template="{:.2%}",
        loss=lambda sums: sums["total"] - sums["equal"],
    )
)
