"""Stored trials as Optuna's records, and studies in memory that hold them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

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
