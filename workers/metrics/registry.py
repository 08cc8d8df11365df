"""Metrics by name, and how sums of shards become scores.

To add one: a file beside this one with a class under ``@metrics.register(name)``, imported in
``metrics/sums.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compiler.named_table import NamedTable
from workers.errors import MetricError
from workers.metrics.protocol import Metric, State

metrics: NamedTable[Metric] = NamedTable("metric", MetricError)


def find_metric(name: str) -> Metric:
    """The metric of a name, or the user's behind ``module:function``.

    Raises:
        MetricError: there is none.
    """
    if ":" in name:
        from workers.metrics.custom import custom_metric

        return custom_metric(name)
    return metrics.require(name)


def merge_sums(shards: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, State]:
    """Sums of all shards, added in the given order; metric name → state."""
    merged: dict[str, State] = {}
    for shard in shards:
        for name, state in shard.items():
            held = merged.setdefault(name, {})
            for key, value in state.items():
                held[key] = held.get(key, 0.0) + value
    return merged


def results(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Score of every metric: fractions 0..1 or decibels; None where there is none.

    Raises:
        MetricError: a name that is not registered.
    """
    import workers.metrics.sums  # noqa: F401 - registers the metrics

    return {name: find_metric(name).result(state) for name, state in sums.items()}
