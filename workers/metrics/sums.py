"""The metrics of one request, fed sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from workers.errors import MetricError
from workers.metrics import agreement, sqnr, top_k  # noqa: F401 - each registers itself
from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import find_metric


class MetricSums:
    """Sums of several metrics.

    Args:
        names: registered metrics; those that need labels or a reference which is not there are
            refused, so that no score is silently empty.
        has_labels, has_reference: what the data offers.
    Raises:
        MetricError: an unknown name, or a metric that lacks what it needs.
    """

    def __init__(self, names: Sequence[str], *, has_labels: bool, has_reference: bool) -> None:
        self._metrics = {name: find_metric(name) for name in names}
        self.sums: dict[str, State] = {name: m.init() for name, m in self._metrics.items()}
        for name, metric in self._metrics.items():
            if metric.needs_labels and not has_labels:
                raise MetricError(
                    f"metric {name!r} needs labels and the data has none",
                    fix="add labels to the data, or use the metric agreement or sqnr",
                )
            if metric.needs_reference and not has_reference:
                raise MetricError(
                    f"metric {name!r} compares with the float model, whose outputs were not given",
                    fix="run the evaluator 'float' with return_outputs first and pass them on",
                )

    def add(self, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None) -> None:
        """Add samples; see ``Metric.update``."""
        for name, metric in self._metrics.items():
            metric.update(self.sums[name], outputs, reference, labels)

    def results(self) -> dict[str, float | None]:
        """Scores so far."""
        return {name: metric.result(self.sums[name]) for name, metric in self._metrics.items()}
