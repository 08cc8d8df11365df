"""From the workers' sums to a score, and the float model's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from qsearch.import_path import is_import_path
from qsearch.search.objectives import SQNR_CEILING_DB, UNCERTAIN
from workers.metrics.custom import named_values, standard_error
from workers.metrics.registry import results
from workers.metrics.sqnr import standard_error_db

SQNR_ERROR: Final = f"sqnr_db{UNCERTAIN}"
"""In a score: the standard error of ``sqnr_db``, from how samples differ."""


def metric_names(has_labels: bool, metric: str = "") -> tuple[str, ...]:
    """Metrics of ``workers.metrics`` that every candidate is scored with, and the user's own."""
    names = ("top1", "agreement", "sqnr") if has_labels else ("agreement", "sqnr")
    return (*names, metric) if is_import_path(metric) else names


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
        SQNR_ERROR: standard_error_db(sums["sqnr"]),
        **_custom(sums),
    }


def _custom(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Scores of the user's own metrics: under their import path, and what else they gave."""
    found: dict[str, float | None] = {}
    for name, state in sums.items():
        if is_import_path(name):
            found[name] = results({name: state})[name]
            found[name + UNCERTAIN] = standard_error(state)
            found.update(named_values(name, state))
    return found


def _sqnr_db(value: float | None, state: Mapping[str, float]) -> float | None:
    if value is not None:
        return value
    equal = state["noise"] == 0 and math.isfinite(state["signal"])
    return None if equal else -SQNR_CEILING_DB


def baseline_score(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """The float model's score: it agrees with itself, and its SQNR is infinite."""
    top1 = results(sums).get("top1")
    return {"top1": top1, "agreement": 1.0, "sqnr_db": None, **_custom(sums)}
