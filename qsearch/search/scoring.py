"""From the workers' sums to a score, and the float model's own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qsearch.search.objectives import SQNR_CEILING_DB
from workers.metrics.registry import results


def metric_names(has_labels: bool) -> tuple[str, ...]:
    """Metrics of ``workers.metrics`` that every candidate is scored with."""
    return ("top1", "agreement", "sqnr") if has_labels else ("agreement", "sqnr")


def score_of(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """The score of merged sums: ``top1``, ``agreement`` (fractions 0..1) and ``sqnr_db``.

    ``sqnr_db`` is None where the outputs equal the float model's, and the lowest value we know
    where they are not finite, so that a broken module never ranks as a perfect one.
    """
    values = results(sums)
    return {
        "top1": values.get("top1"),
        "agreement": values.get("agreement"),
        "sqnr_db": _sqnr_db(values.get("sqnr"), sums["sqnr"]),
    }


def _sqnr_db(value: float | None, state: Mapping[str, float]) -> float | None:
    if value is not None:
        return value
    equal = state["noise"] == 0 and math.isfinite(state["signal"])
    return None if equal else -SQNR_CEILING_DB


def baseline_score(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """The float model's score: it agrees with itself, and its SQNR is infinite."""
    return {"top1": results(sums).get("top1"), "agreement": 1.0, "sqnr_db": None}
