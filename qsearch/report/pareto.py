"""The Pareto front of a search with several objectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from qsearch.search.objectives import Objective, Score, score_key
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


_EXTREMES: Final = {"smallest": ("size",), "fastest": ("latency", "c_latency")}
"""Options of the cost that a trial has the least of: the first that was measured."""


def extremes(trials: Iterable[Trial], objective: Objective) -> dict[str, Trial]:
    """The smallest and the fastest of the trials that break no limit; of equals the best."""
    kept = [t for t in trials if t.state == "complete" and objective.feasible(t.score)]
    found: dict[str, Trial] = {}
    for name, costs in _EXTREMES.items():
        for key in map(score_key, reversed(costs)):
            timed = [
                (cost, -objective.ranking(trial.score), trial.number, trial)
                for trial in kept
                if (cost := trial.score.get(key)) is not None
            ]
            if timed:
                found[name] = min(timed, key=lambda each: each[:3])[-1]
    return found


def front_of(trials: Iterable[Trial], objective: Objective) -> list[dict[str, Any]]:
    """The trials ``on_front`` with their stage and objectives."""
    complete = {t.number: t for t in trials if t.state == "complete" and t.score}
    scores = {number: trial.score for number, trial in complete.items()}
    return [
        {
            "trial": number,
            "stage": complete[number].stage,
            objective.names[0]: objective.shown(scores[number]),
            **dict(zip(objective.minimize, objective.costs(scores[number]), strict=True)),
        }
        for number in on_front(scores, objective)
    ]
