"""Metric "sqnr": signal to quantization noise ratio of the outputs, in decibels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import MetricError
from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import metrics

FLOOR_DB = -400.0
"""Stands for "nothing left of the signal": outputs that are not finite, a reference of zeros."""


class Sqnr:
    """10 log10(sum reference^2 / sum (output - reference)^2), over all outputs and samples."""

    needs_labels = False
    needs_reference = True

    def init(self) -> State:
        """See ``Metric.init``."""
        return {"signal": 0.0, "noise": 0.0}

    def update(
        self,
        state: State,
        outputs: Outputs,
        reference: Outputs | None,
        labels: NDArray[Any] | None,
    ) -> None:
        """See ``Metric.update``.

        Raises:
            MetricError: there is no reference.
        """
        if reference is None:
            raise MetricError("metric 'sqnr' needs the float model's outputs")
        for output, wanted in zip(outputs, reference, strict=True):
            signal = np.asarray(wanted, np.float64)
            state["signal"] += float(np.sum(signal * signal))
            noise = np.asarray(output, np.float64) - signal
            state["noise"] += float(np.sum(noise * noise))

    def result(self, state: Mapping[str, float]) -> float | None:
        """See ``Metric.result``; infinite, so None, where the outputs are equal."""
        signal, noise = state["signal"], state["noise"]
        if noise == 0:
            return None
        if not (signal > 0 and math.isfinite(signal) and math.isfinite(noise)):
            return FLOOR_DB
        return 10.0 * math.log10(signal / noise)


metrics.register("sqnr")(Sqnr())
