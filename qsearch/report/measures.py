"""Find the measures of a study, the better direction of each, and the best trials.

Everything is read from the study and its scores: a metric of one's own is shown like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qsearch.report.pareto import on_front
from qsearch.search.objectives import (
    COMPARISONS,
    KEEPS_ACCURACY,
    Objective,
    is_uncertainty,
    option_of,
    score_key,
)
from qsearch.store.records import Study
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure, by_option, measure

SECONDS: Final = Measure("seconds", title="wall time", unit="s", smaller_is_better=True)
CPU_S: Final = Measure("cpu_s", title="CPU time", unit="s", smaller_is_better=True)
"""Time of a trial; not part of a score."""
_TIMINGS: Final = {each.name: each for each in (CPU_S, SECONDS)}
_COSTS_FIRST: Final = (
    "hw_traffic",
    "hw_cycles",
    "hw_groups",
    "latency_ms",
    "c_latency_ms",
    "model_bytes",
)
"""Costs that are drawn before others."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one study.

    Attributes:
        objective: what decides the winner.
        primary: the measure the search is about.
        all: every measure that some trial has, the primary one first.
        accuracy: the measure that ``--max-drop`` looks at.
        varying: names of those of which trials have different values.
    """

    objective: Objective
    primary: Measure
    all: tuple[Measure, ...]
    accuracy: Measure
    varying: frozenset[str] = frozenset()

    @classmethod
    def of(cls, study: Study, trials: Iterable[TrialPoint]) -> Measures:
        """Return the measures of a study and its trials so far."""
        objective = Objective.of(study.spec)
        names: dict[str, None] = {by_option(objective.metric).name: None}
        first: dict[str, float | None] = {}
        varying: set[str] = set()
        timed = False
        for trial in trials:
            timed = timed or trial.seconds is not None
            for name, value in (trial.score or {}).items():
                if name not in first:
                    first[name] = value
                elif value != first[name]:
                    varying.add(name)
                has = value is not None or measure(name).infinite is not None
                told = name not in names and has
                if told and name not in COMPARISONS and not is_uncertainty(name, trial.score or {}):
                    names[name] = None
        if timed:
            names.update(dict.fromkeys(_TIMINGS))
            varying.update(_TIMINGS)
        measures = tuple(measure_of(name) for name in names)
        scored = (n for n in ("top1", "agreement") if (study.baseline or {}).get(n) is not None)
        name = next(scored, "sqnr_db")
        return cls(objective, measures[0], measures, measure_of(name), frozenset(varying))

    def named(self, name: str | None) -> Measure | None:
        """The measure of this name; None where there is none."""
        return next((measure for measure in self.all if measure.name == name), None)

    @property
    def cost(self) -> Measure | None:
        """The cost that accuracy is drawn against; None where trials do not differ in any.

        That which the search minimises, or else the first in which its trials differ: the
        hardware's, the model's. What a trial took to run says nothing of its module.
        """
        asked = [score_key(name) for name in self.objective.minimize]
        wanted = [*asked, *_COSTS_FIRST]
        costs = [
            m
            for m in self.all
            if m.smaller_is_better and m.name not in _TIMINGS and m.name in {*asked, *self.varying}
        ]
        place = {name: index for index, name in reversed(list(enumerate(wanted)))}
        return min(costs, key=lambda m: place.get(m.name, len(wanted)), default=None)

    @property
    def objectives(self) -> tuple[Measure, ...]:
        """Objectives of the search: the metric, then the costs of ``--minimize``."""
        return tuple(by_option(name) for name in self.objective.names)

    def broken(self, score: Mapping[str, Any] | None) -> list[str]:
        """Limits that a trial breaks, as the options of the command line that set them."""
        if score is None:
            return []
        amounts = dict(self.objective.violations(score))
        # A cost as the metric ranks by the floor instead of counting it as a violation.
        if score.get(KEEPS_ACCURACY) == 0:
            amounts["max_drop"] = 1.0
        return [option_of(name) for name, by in sorted(amounts.items()) if by > 0]

    def best(self, trials: Sequence[TrialPoint]) -> TrialPoint | None:
        """The winner among trials; None where none is complete."""
        return next(reversed(self.winners(trials)), None)

    def winners(self, trials: Iterable[TrialPoint]) -> list[TrialPoint]:
        """The trials that were better than all before them, in order; the last one is the best."""
        found: list[tuple[tuple[float, ...], TrialPoint]] = []
        for trial in trials:
            if trial.state == "complete" and trial.score is not None:
                rank = self.objective.rank(trial.score, trial.number)
                if not found or rank > found[-1][0]:
                    found.append((rank, trial))
        return [trial for _, trial in found]


def measure_of(name: str) -> Measure:
    """The measure of a key in a score, or of what a trial took."""
    return _TIMINGS.get(name) or measure(name)


def value_of(each: Measure, trial: TrialPoint) -> float | None:
    """The stored value; an infinite one is a finite number that can be drawn."""
    if each.name in _TIMINGS:
        if each is SECONDS:
            return trial.seconds
        return trial.cpu_s
    return value_in(each, trial.score)


def value_in(each: Measure, score: Mapping[str, Any] | None) -> float | None:
    """The value in a score."""
    if score is None or each.name not in score:
        return None
    return each.finite(score[each.name])


def scores_of(trials: Iterable[TrialPoint]) -> dict[int, Mapping[str, float | None]]:
    """The scores of the complete trials, by number."""
    return {t.number: t.score for t in trials if t.state == "complete" and t.score}


def front_numbers(measures: Measures, trials: Iterable[TrialPoint]) -> list[int]:
    """Trials on the front, the best first; empty for a search with one objective."""
    objective = measures.objective
    if objective.minimize:
        return on_front(scores_of(trials), objective)
    return []
