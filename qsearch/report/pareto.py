"""The Pareto front of a search with several objectives, and the volume it dominates.

The hypervolume is exact, by slicing along one objective after the other; its cost grows with the
number of objectives, of which a search has two or three. Sources: Zitzler and Thiele,
"Multiobjective evolutionary algorithms", 1999 (the measure); While et al., "A faster algorithm for
calculating hypervolume", 2006 (slicing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qsearch.search.objectives import Objective
from qsearch.store.records import Trial

Point = tuple[float, ...]
"""One number per objective, all to be maximised."""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other equals or beats in every objective, largest first."""
    kept: list[Point] = []
    for point in sorted(set(points), reverse=True):
        if not any(all(a >= b for a, b in zip(other, point, strict=True)) for other in kept):
            kept.append(point)
    return kept


def hypervolume(points: Iterable[Point], reference: Point) -> float:
    """Volume between ``reference`` and the points that are above it in every objective."""
    above = [p for p in points if all(a > r for a, r in zip(p, reference, strict=True))]
    volume = 0.0
    # Slabs still to be measured: their points, the objectives left, and the extent of the others.
    slabs: list[tuple[list[Point], int, float]] = [(above, len(reference), 1.0)]
    while slabs:
        held, left, extent = slabs.pop()
        if not held:
            continue
        axis = left - 1
        if axis == 0:
            volume += extent * (max(point[0] for point in held) - reference[0])
            continue
        levels = sorted({point[axis] for point in held}, reverse=True)
        for level, below in zip(levels, [*levels[1:], reference[axis]], strict=True):
            inside = [point for point in held if point[axis] >= level]
            slabs.append((inside, axis, extent * (level - below)))
    return volume


def front_of(trials: Iterable[Trial], objective: Objective) -> list[dict[str, Any]]:
    """The complete trials that break no limit and that no other beats in everything.

    Of equal trials the earliest; the best by the metric first.
    """
    values: dict[Point, Trial] = {}
    for trial in trials:
        score = trial.outcome.score
        if trial.state == "complete" and score is not None and objective.feasible(score):
            values.setdefault(objective.values(score), trial)
    return [
        {
            "trial": values[point].number,
            "stage": values[point].stage,
            **{
                name: objective.shown(values[point].outcome.score or {}) if place == 0 else -number
                for place, (name, number) in enumerate(zip(objective.names, point, strict=True))
            },
        }
        for point in front(values)
    ]


def hypervolume_of(trials: Sequence[Trial], objective: Objective) -> dict[str, Any] | None:
    """Volume above the worst value that any complete trial has in each objective.

    Returns:
        ``value`` and the ``reference`` it is measured from; None before a trial is complete.
    """
    complete = [t for t in trials if t.state == "complete" and t.outcome.score is not None]
    points = [objective.values(t.outcome.score or {}) for t in complete]
    if not points:
        return None
    reference = tuple(min(column) for column in zip(*points, strict=True))
    kept = [
        point
        for point, trial in zip(points, complete, strict=True)
        if objective.feasible(trial.outcome.score or {})
    ]
    return {"value": hypervolume(kept, reference), "reference": list(reference)}
