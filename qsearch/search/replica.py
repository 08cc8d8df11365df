"""Optuna's view of a study: stored trials as its records, importances, and an export.

The store is the truth. Studies of Optuna are built from it in memory, or written to a storage of
Optuna's own for ``optuna-dashboard`` and other tools.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState, create_trial

from qsearch.errors import SettingsError
from qsearch.search.objectives import Objective
from qsearch.search.samplers import GENERATION, POPULATION
from qsearch.search.space import Space
from qsearch.store.records import Trial

Distributions = dict[str, BaseDistribution]

_STATES: Final = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED,  # so that the sampler learns to stay away
    "failed": TrialState.FAIL,
}


class StoredTrial(FrozenTrial):
    """A finished trial whose copies share what never changes: distributions and values.

    Optuna copies a trial in depth whenever it takes or gives one; on a study of 10,000 trials that
    was three quarters of the time to open it.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredTrial:
        twin = StoredTrial.__new__(StoredTrial)
        fields = vars(self).items()
        vars(twin).update({n: dict(v) if isinstance(v, dict) else v for n, v in fields})
        return twin


def distributions_of(space: Space) -> Distributions:
    """What Optuna samples from: the parameters with a choice, by name."""
    choosing = [p for p in space.parameters if len(p.choices) > 1]
    return {p.name: CategoricalDistribution(p.choices) for p in choosing}


def frozen_trial(
    trial: Trial, distributions: Distributions, objective: Objective, before: int = 0
) -> FrozenTrial:
    """A finished trial of the store as Optuna's record of it.

    With several objectives, which Optuna's PRUNED does not know, a stopped trial counts with what
    it reached and a broken constraint.

    Args:
        before: complete trials before it, which decide its generation.
    """
    params = {name: value for name, value in trial.params.items() if name in distributions}
    state = _STATES[trial.state]
    score = trial.outcome.score
    broken = objective.violations(score or {}) if score is not None else {}
    if len(objective.names) > 1 and state == TrialState.PRUNED:
        state = TrialState.FAIL if score is None else TrialState.COMPLETE
        broken["stopped"] = 1.0
    complete = state == TrialState.COMPLETE
    begun = trial.created_at if trial.started_at is None else trial.started_at
    ended = begun if trial.finished_at is None else max(begun, trial.finished_at)
    # Optuna's create_trial compares every distribution with itself, choice by choice.
    frozen = StoredTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=list(objective.values(score or {})) if complete else None,
        datetime_start=datetime.fromtimestamp(begun),
        datetime_complete=datetime.fromtimestamp(ended),
        params=params,
        distributions={name: distributions[name] for name in params},
        user_attrs={
            "number": trial.number,
            "state": trial.state,
            "score": dict(score) if score is not None else None,
            "config_hash": trial.config_hash,
        },
        system_attrs={GENERATION: before // POPULATION},
        intermediate_values={},
    )
    if complete:
        for name, amount in broken.items():
            frozen.set_constraint(name, amount)
    return frozen


def new_study(objective: Objective) -> optuna.Study:
    """An empty in-memory study that maximises every objective; costs are negative."""
    return optuna.create_study(directions=["maximize"] * len(objective.names))


def replica(trials: Sequence[Trial], space: Space, objective: Objective) -> optuna.Study:
    """An in-memory Optuna study that holds the finished trials, for plots and analysis."""
    with quiet_optuna():
        study = new_study(objective)
        known = distributions_of(space)
        study.add_trials([frozen_trial(t, known, objective) for t in trials if t.finished])
    return study


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's log lines and experimental warnings off the user's terminal."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)


LEAST: Final = 8
"""Trials below which nothing is said."""
MOST: Final = 3000
"""Of more trials an even choice is looked at."""


def importances(
    trials: Sequence[tuple[Mapping[str, Any], float]], *, smaller_is_better: bool = False
) -> dict[str, float]:
    """Importance of the parameters that every trial has and that differ; they add up to one.

    Args:
        trials: parameters and value of complete trials.
    Returns:
        Empty where there are too few trials, or all values are the same.
    """
    trials = trials[:: -(-len(trials) // MOST)] if trials else trials
    if len(trials) < LEAST or len({value for _, value in trials}) < 2:
        return {}
    shared = set.intersection(*(set(params) for params, _ in trials))
    choices = {
        name: tuple(dict.fromkeys(params[name] for params, _ in trials)) for name in sorted(shared)
    }
    known: dict[str, BaseDistribution] = {
        n: CategoricalDistribution(c) for n, c in choices.items() if len(c) > 1
    }
    if not known:
        return {}
    with quiet_optuna():
        study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
        study.add_trials(
            [
                create_trial(
                    params={name: params[name] for name in known}, distributions=known, value=value
                )
                for params, value in trials
            ]
        )
        found = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator()
        )
    return {name: float(value) for name, value in found.items()}


def write_study(
    trials: Sequence[Trial], space: Space, objective: Objective, url: str, name: str
) -> None:
    """Write finished trials, in order, as a new study.

    Args:
        url: of an Optuna storage, such as ``sqlite:///optuna.db``; not our own database, since
            both own tables there.
    Raises:
        SettingsError: the name is taken, or the storage cannot be used.
    """
    known = distributions_of(space)
    costs = [optuna.study.StudyDirection.MINIMIZE] * len(objective.minimize)
    with quiet_optuna():
        try:
            study = optuna.create_study(
                storage=url,
                study_name=name,
                directions=[optuna.study.StudyDirection.MAXIMIZE, *costs],
            )
        except optuna.exceptions.DuplicatedStudyError as error:
            raise SettingsError(
                f"the Optuna storage has a study {name!r} already",
                where=url,
                fix="choose another with --name, or another storage",
            ) from error
        except Exception as error:  # whatever the driver of that storage raises
            raise SettingsError(
                f"the Optuna storage cannot be used: {str(error).splitlines()[0]}",
                where=url,
                fix="for example sqlite:///optuna.db, a file of its own",
            ) from error
        study.set_metric_names(list(objective.names))
        study.add_trials([_as_shown(frozen_trial(trial, known, objective)) for trial in trials])


def _as_shown(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """Costs as they are: samplers see their negatives."""
    if trial.values is not None:
        metric, *costs = trial.values
        trial.values = [metric, *(-cost for cost in costs)]
    return trial
