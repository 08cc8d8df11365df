"""The Pareto front of a search with several objectives, and the volume it dominates.

The hypervolume is exact, by slicing along one objective after the other; its cost grows with the
number of objectives, of which a search has two or three. Sources: Zitzler and Thiele,
"Multiobjective evolutionary algorithms", 1999 (the measure); While et al., "A faster algorithm for
calculating hypervolume", 2006 (slicing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qsearch.search.objectives import Objective, Score
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


def on_front(scores: Mapping[int, Score], objective: Objective) -> list[int]:
    """Trials that break no limit and that no other beats in everything, the best metric first.

    Of trials with equal objectives the one that ranks first, so the best is on the front.

    Args:
        scores: of the complete trials, by number.
    """
    kept: dict[Point, int] = {}
    for number, score in scores.items():
        if not objective.feasible(score):
            continue
        point = objective.rankings(score)
        other = kept.setdefault(point, number)
        if objective.rank(score, number) > objective.rank(scores[other], other):
            kept[point] = number
    return [kept[point] for point in front(kept)]


def front_of(trials: Iterable[Trial], objective: Objective) -> list[dict[str, Any]]:
    """The trials ``on_front`` with their stage and objectives."""
    complete = {t.number: t for t in trials if t.state == "complete" and t.outcome.score}
    scores = {number: trial.outcome.score or {} for number, trial in complete.items()}
    return [
        {
            "trial": number,
            "stage": complete[number].stage,
            objective.metric: objective.shown(scores[number]),
            **dict(zip(objective.minimize, objective.costs(scores[number]), strict=True)),
        }
        for number in on_front(scores, objective)
    ]


def hypervolume_of(trials: Sequence[Trial], objective: Objective) -> dict[str, Any] | None:
    """Volume above the worst value that any complete trial has in each objective.

    Returns:
        ``value`` and the ``reference`` it is measured from; None before a trial is complete.
    """
    complete = [t for t in trials if t.state == "complete" and t.outcome.score is not None]
    points = [objective.rankings(t.outcome.score or {}) for t in complete]
    if not points:
        return None
    reference = tuple(min(column) for column in zip(*points, strict=True))
    kept = [
        point
        for point, trial in zip(points, complete, strict=True)
        if objective.feasible(trial.outcome.score or {})
    ]
    return {"value": hypervolume(kept, reference), "reference": list(reference)}
