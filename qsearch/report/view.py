"""Describe the standing of a study as plain values, for the dashboard and the report.

Fractions are 0..1, times UTC seconds. ``trials_as_columns`` gives every trial in the space of a few
numbers, so that a browser draws all plots from one answer.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import create_trial

from qsearch.masking import masked
from qsearch.report.build import intervals
from qsearch.report.measures import Measures, front_numbers, scores_of, value_in, value_of
from qsearch.run.run_folder import RunFolder
from qsearch.search.objectives import expected_in
from qsearch.search.optuna_study import quiet_optuna
from qsearch.settings.launch_settings import parse_max_drop
from qsearch.store.records import (
    LISTENING_S,
    DriverRecord,
    Stage,
    Study,
    listening,
)
from qsearch.store.repository import Repository
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure, by_option

SPARK_POINTS: Final = 60
WITHOUT_MODULE: Final = ("failed", "infeasible", "pruned")
"""States of trials that ended and cannot win."""
COLLAPSED: Final = "collapsed on the first samples"
"""Reason of a trial that was stopped and says nothing else."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limit that a winner must keep: a measure of at least (≥) or at most (≤) a value."""

    measure: Measure
    sign: str
    value: float

    @property
    def words(self) -> str:
        return f"{self.measure.words} {self.sign} {told(self.measure, self.value)}"

    def keeps(self, score: Mapping[str, Any] | None) -> bool:
        value = value_in(self.measure, score)
        # Fractions of a few hundred samples: the last bit of a subtraction must not decide.
        near = 1e-9 * max(1.0, abs(self.value))
        if value is None:
            return False
        if self.sign == "≥":
            return value >= self.value - near
        return value <= self.value + near


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study and what belongs to it, read at one moment.

    Attributes:
        points: every trial, by number.
        best: the winner so far.
        drivers: processes that search it, or did.
        folder: the run folder, where this machine has it.
        storage: URL of the database where it is not the run folder's own.
        beside: what the end of the search said beside the scores of the best trial.
    """

    study: Study
    measures: Measures
    points: Sequence[TrialPoint]
    best: TrialPoint | None = None
    stages: Sequence[Stage] = ()
    drivers: Sequence[DriverRecord] = ()
    folder: RunFolder | None = None
    storage: str | None = None
    beside: Sequence[str] = ()
    now: float = field(default_factory=time.time)

    @classmethod
    def of(
        cls,
        repository: Repository,
        known: tuple[Study, Measures, Sequence[TrialPoint], TrialPoint | None],
        folder: RunFolder | None,
        storage: str | None = None,
    ) -> StudyView:
        """A study whose row and trials are known: stages, drivers and sentences are read now."""
        study, *_, best = known
        if best is None:
            beside = []
        else:
            beside = repository.beside_of(study.id, best.number)
        stages = repository.stages_of(study.id)
        drivers = repository.drivers_of(study.id)
        return cls(*known, stages, drivers, folder, storage, beside)

    @property
    def listening(self) -> int:
        """The number of drivers that will read a command."""
        return listening(self.drivers, self.now)

    @property
    def silent(self) -> bool:
        """Return whether the study is in state running and no driver sends heartbeats."""
        if self.study.state != "running" or self.listening:
            return False
        # A driver that left in good order, or has yet to come, is given a moment.
        quiet = self.now - max([self.study.updated_at, *(d.beat_at for d in self.drivers)])
        return quiet > LISTENING_S or any(d.state == "running" for d in self.drivers)

    @property
    def phase(self) -> str:
        """Phase of the study in words."""
        study = self.study
        ended = sum(point.finished for point in self.points)
        if study.state != "running":
            return study.state
        if self.silent:
            return "no driver"
        if not self.drivers:
            return "preparing"
        if study.baseline is None:
            return "measuring the float model"
        if ended >= study.target_trials or not self.listening:
            return "writing the winner"
        stage = next((stage.name for stage in self.stages if stage.state == "running"), None)
        words = {"sensitivity": "measuring the sensitivity of layers", "layers": "searching layers"}
        return words.get(stage or "", "searching" if self.points else "preparing")

    def limits(self) -> list[dict[str, Any]]:
        """Return the limits that a winner must keep, in words, and whether the best trial keeps
        them."""
        return [
            {
                "name": limit.measure.name,
                "sign": limit.sign,
                "limit": limit.value,
                "words": limit.words,
                "kept": None if self.best is None else limit.keeps(self.best.score),
            }
            for limit in self._limits()
        ]

    def _limits(self) -> list[_Limit]:
        objective = self.measures.objective
        floor = self.floor
        if floor is None:
            found = []
        else:
            found = [_Limit(self.measures.accuracy, "≥", floor)]
        if objective.max_size is None:
            costs = []
        else:
            costs = [("size", objective.max_size)]
        most = [*costs, *objective.at_most]
        return found + [_Limit(by_option(name), "≤", value) for name, value in most]

    @property
    def floor(self) -> float | None:
        """Least accuracy that still counts as kept; from the run folder where the spec has none."""
        base = (self.study.baseline or {}).get(self.measures.accuracy.name)
        text = self.study.spec.get("max_drop")
        if text is None and self.folder is not None:
            text = self.folder.setting("max_drop")
        if base is None or text is None:
            return None
        return parse_max_drop(text).floor(float(base))

    def verdict(self, limits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """``state`` (met, missed, none, open) and a sentence."""
        missed = [limit["words"] for limit in limits if limit["kept"] is False]
        if self.study.state == "running" or (self.study.state == "paused"):
            if missed:
                so_far = "no trial within limits yet: " + ", ".join(missed)
            else:
                so_far = ""
            if self.silent:
                phase = "interrupted: no driver is running"
            else:
                phase = self.phase
            return {"state": "open", "words": so_far or phase}
        if self.best is None:
            why = f": {self.study.stopped}" if self.study.stopped else ""
            return {"state": "none", "words": f"no trial gave a module{why}"}
        if missed:
            asked = self._limits()
            inside = [p for p in self.points if all(limit.keeps(p.score) for limit in asked)]
            within = self.measures.best(inside)
            which = ", ".join(missed)
            if within is None:
                words = f"no trial within limits: {which}"
            else:
                words = f"trial {within.number} is within limits, the best is not: {which}"
            return {"state": "missed", "words": words}
        kept = ", ".join(str(limit["words"]) for limit in limits)
        if self.study.state == "complete":
            ended = "done"
        else:
            ended = self.study.state
        return {"state": "met", "words": f"met: {kept}" if kept else f"{ended}; no limits were set"}

    @property
    def resume(self) -> str | None:
        """The command that continues the search; None where it is done or runs."""
        done = sum(p.finished for p in self.points) >= self.study.target_trials
        wanting = self.silent or self.study.state in ("stopped", "failed", "paused")
        if self.listening or not wanting or (done and self.study.state != "running"):
            return None
        if self.folder is None or not self.folder.config.is_file():
            return None
        words = ["qsearch", "launch", "-c", str(self.folder.config), "-o", str(self.folder.path)]
        if self.storage is not None:
            words += ["--storage", masked(self.storage)]
        return shlex.join(words)

    def head(self) -> dict[str, Any]:
        """Return the standing and the result: verdict, limits, the best trial beside the float
        model."""
        study = self.study
        measures = self.measures
        best = self.best
        limits = self.limits()
        scores = scores_of(self.points)
        base = _numbers(study.baseline or {})
        return {
            "name": study.name,
            "state": study.state,
            "finished": sum(point.finished for point in self.points),
            "target_trials": study.target_trials,
            "counts": dict(Counter(point.state for point in self.points)),
            "measure": measure_out(measures.primary),
            "phase": self.phase,
            "verdict": self.verdict(limits),
            "objectives": [measure_out(each) for each in measures.objectives],
            "limits": limits,
            "best": None
            if best is None
            else {
                "number": best.number,
                "value": value_of(measures.primary, best),
                "score": dict(best.score or {}),
                "breaks": measures.broken(best.score),
                "intervals": intervals(best.score or {}, best.samples),
                "luck": measures.objective.explained(best.number, scores),
                "beside": list(self.beside),
            },
            "baseline": None if study.baseline is None else base,
            "baseline_intervals": intervals(base, None if best is None else best.samples),
            "front": [
                {"number": number, "score": dict(scores[number])}
                for number in front_numbers(measures, self.points)
            ],
            "cost": None if measures.cost is None else measures.cost.name,
            "accuracy": measures.accuracy.name,
            "floor": self.floor,
            "resume": self.resume,
        }


def measure_out(measure: Measure) -> dict[str, Any]:
    """A figure that trials have; the unit "%" stands for a stored fraction."""
    names = ("name", "words", "unit", "smaller_is_better", "infinite", "meaning")
    return {name: getattr(measure, name) for name in names}


def parameter_names(points: Sequence[TrialPoint]) -> list[str]:
    """Names of the searched parameters, those that were tried with most values first."""
    values: dict[str, set[str]] = {}
    for point in points:
        for name, value in point.params.items():
            values.setdefault(name, set()).add(str(value))
    return sorted(values, key=lambda name: -len(values[name]))


def constant_names(measures: Measures, points: Sequence[TrialPoint]) -> list[str]:
    """Measures and parameters (``params.NAME``) that have one value in all trials."""
    found = [m.name for m in measures.all if m.name not in measures.varying]
    for name in parameter_names(points):
        if len({str(point.params.get(name, _MISSING)) for point in points}) < 2:
            found.append(f"params.{name}")
    return found


def spark(measures: Measures, points: Sequence[TrialPoint]) -> list[float]:
    """The first measure of the best trial so far over the trials, thinned out."""
    winners = {point.number for point in measures.winners(points)}
    best: list[float] = []
    for point in points:
        if point.state == "complete":
            value = value_of(measures.primary, point)
        else:
            value = None
        if value is not None:
            best.append(value if not best or point.number in winners else best[-1])
    if len(best) <= SPARK_POINTS:
        return best
    step = (len(best) - 1) / (SPARK_POINTS - 1)
    return [best[round(index * step)] for index in range(SPARK_POINTS)]


def trials_as_columns(measures: Measures, points: Sequence[TrialPoint]) -> dict[str, Any]:
    """Every trial, a list per column; words are places in a list of their own.

    Returns:
        ``number``, ``state``, ``stage``, ``driver_id``, ``started_at``, ``finished_at``; ``scores``
        by measure; ``part``, of trials that were stopped early the samples and the scores to
        be expected on all, by the place of the trial; ``params`` by name, each
        ``{"values": […], "at": […]}`` with -1 for none; numbers of trials on the ``front``, and of
        the ``winners`` so far. An infinite score is the number that stands for it.
    """
    return {
        "number": [point.number for point in points],
        "state": _coded([point.state for point in points]),
        "stage": _coded([point.stage for point in points]),
        "driver_id": [point.driver_id for point in points],
        "started_at": [_ms(point.started_at) for point in points],
        "finished_at": [_ms(point.finished_at) for point in points],
        "from_store": [int(point.from_store) for point in points],
        "scores": {m.name: [_short(value_of(m, point)) for point in points] for m in measures.all},
        "part": {
            place: {"samples": point.samples, **expected_in(point.score or {})}
            for place, point in enumerate(points)
            if point.state == "pruned"
        },
        "params": {
            name: _coded([point.params.get(name, _MISSING) for point in points])
            for name in parameter_names(points)
        },
        "front": front_numbers(measures, points),
        "winners": [point.number for point in measures.winners(points)],
    }


_LEAST: Final = 8
"""Trials below which nothing is said."""
_MOST: Final = 3000
"""Trials that are looked at; of more, an even choice is."""


def importances_of(
    measure: Measure, points: Sequence[TrialPoint]
) -> tuple[dict[str, float], list[str]]:
    """Importance of the parameters that every complete trial has and that differ, adding up to one.

    Returns:
        Importances, none where there are too few trials or all values are the same; and the names
        of parameters that some trials lack.
    """
    trials = [
        (point.params, value)
        for point in points
        if point.state == "complete" and (value := value_of(measure, point)) is not None
    ]
    if trials:
        shared = set.intersection(*(set(params) for params, _ in trials))
    else:
        shared = set()
    left_out = sorted({name for params, _ in trials for name in params} - shared)
    trials = trials[:: -(-len(trials) // _MOST) or 1]
    if len(trials) < _LEAST or len({value for _, value in trials}) < 2:
        return {}, left_out
    choices = {
        name: tuple(dict.fromkeys(params[name] for params, _ in trials)) for name in sorted(shared)
    }
    known: dict[str, BaseDistribution] = {
        n: CategoricalDistribution(c) for n, c in choices.items() if len(c) > 1
    }
    if not known:
        return {}, left_out
    # It brings scikit-learn, where that is installed: a second that few pages need.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with quiet_optuna():
        study = optuna.create_study(
            direction="minimize" if measure.smaller_is_better else "maximize"
        )
        study.add_trials(
            [
                create_trial(
                    params={name: params[name] for name in known}, distributions=known, value=value
                )
                for params, value in trials
            ]
        )
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {name: float(value) for name, value in found.items()}, left_out


def told(measure: Measure, value: float) -> str:
    """A stored value with its unit, for a sentence."""
    shown = measure.shown(value)
    assert shown is not None
    return f"{round(shown, 2) if measure.unit == '%' else shown:,.6g} {measure.unit}".strip()


_MISSING: Final = object()


def _coded(values: Sequence[Any]) -> dict[str, Any]:
    keys = [f"{type(value).__name__} {value}" for value in values]  # True is not 1 here
    known = {key: value for key, value in zip(keys, values) if value is not _MISSING}
    places = {key: place for place, key in enumerate(known)}
    return {"values": list(known.values()), "at": [places.get(key, -1) for key in keys]}


def _short(value: float | None) -> float | None:
    # Nine digits are more than a plot can show, and a third of the bytes.
    if value is None:
        return None
    return float(f"{value:.9g}")


def _ms(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 3)


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    """The plain numbers of a mapping."""
    return {k: v for k, v in values.items() if v is None or isinstance(v, int | float)}
