"""Optuna's view of a study: stored trials as its records, and importances.

The store is the truth: studies of Optuna are built from it in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from compiler.named_table import NamedTable
from qsearch.errors import SettingsError
from qsearch.process import quieted
from qsearch.search.objectives import KEEPS_ACCURACY, Objective
from qsearch.search.space import Space
from qsearch.settings.launch_settings import is_import_path
from qsearch.settings.user_code import load_object
from qsearch.store.records import Trial

MakeSampler = Callable[[int], BaseSampler]
samplers: NamedTable[MakeSampler] = NamedTable("sampler", SettingsError)
"""Functions from a seed (0 … 2^32-1) to an Optuna sampler; a grid is visited without one."""

AUTO: Final = "auto"
"""The default: good guesses, a Gaussian process and TPE; see ``StudySampler``."""

HISTORY_FREE: Final = frozenset({"random", "grid"})
"""Samplers that propose the same whatever came of earlier trials."""

# A third of the default study starts at random: TPE on fewer points follows noise.
_STARTUP_TRIALS = 10


_SAMPLER: Final = "a function from a seed to an Optuna sampler"


def make_sampler(name: str, seed: int, batch: int) -> BaseSampler:
    """The sampler that proposes batch number ``batch`` of a study with this seed."""
    if is_import_path(name):
        make = own_sampler(name)
        chance = batch_seed(seed, batch)
        # The first parameter of Optuna's own classes is another.
        named = "seed" in inspect.signature(make).parameters
        sampler = make(seed=chance) if named else make(chance)
        if not isinstance(sampler, BaseSampler):
            raise SettingsError(f"sampler {name} gave {sampler!r}", where="sampler", fix=_SAMPLER)
        return sampler
    return samplers.require(name)(batch_seed(seed, batch))


def own_sampler(path: str) -> Any:
    """The user's function from a seed to a sampler, or class of samplers.

    Raises:
        SettingsError: there is none at this import path.
    """
    found = load_object(path, "sampler")
    if not callable(found):
        raise SettingsError(f"sampler {path} is {found!r}", where="sampler", fix=_SAMPLER)
    return found


def batch_seed(seed: int, batch: int, slot: int = 0) -> int:
    """A 32-bit seed for one batch (and one place in it) of a study."""
    digest = hashlib.sha256(f"{seed}/{batch}/{slot}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


@samplers.register("tpe")
def tpe(seed: int) -> BaseSampler:
    """Tree-structured Parzen estimator over all parameters at once."""
    return TPESampler(
        seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_STARTUP_TRIALS
    )


@samplers.register("random")
def random(seed: int) -> BaseSampler:
    """Every parameter uniformly at random."""
    return RandomSampler(seed=seed)


Distributions = dict[str, BaseDistribution]

_STATES: Final = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED,  # so that the sampler learns to stay away
    "failed": TrialState.FAIL,
}


def distributions_of(space: Space, costly: bool = True) -> Distributions:
    """The parameters with a choice, by name.

    Args:
        costly: whether with costly choices; Optuna's samplers do not know them.
    """
    choices = {p.name: p.choices if costly else p.usual for p in space.parameters}
    return {name: CategoricalDistribution(one) for name, one in choices.items() if len(one) > 1}


def frozen_trial(trial: Trial, distributions: Distributions, objective: Objective) -> FrozenTrial:
    """A finished trial of the store as Optuna's record of it, valued by its ranking: for samplers.

    With several objectives, which Optuna's PRUNED does not know, a stopped trial counts with what
    it reached and a broken constraint.
    """
    params = {name: value for name, value in trial.params.items() if name in distributions}
    state = _STATES[trial.state]
    score = trial.outcome.score
    if score is not None:
        broken = objective.violations(score or {})
    else:
        broken = {}
    if len(objective.names) > 1 and state == TrialState.PRUNED:
        if score is None:
            state = TrialState.FAIL
        else:
            state = TrialState.COMPLETE
        broken["stopped"] = 1.0
    complete = state == TrialState.COMPLETE
    if trial.started_at is None:
        begun = trial.created_at
    else:
        begun = trial.started_at
    if trial.finished_at is None:
        ended = begun
    else:
        ended = max(begun, trial.finished_at)
    # Optuna's create_trial compares every distribution with itself, choice by choice.
    frozen = FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=list(objective.rankings(score or {})) if complete else None,
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
        system_attrs={},
        intermediate_values={},
    )
    if complete:
        for name, amount in broken.items():
            frozen.set_constraint(name, amount)
    return frozen


def measured_trial(trial: Trial, distributions: Distributions, objective: Objective) -> FrozenTrial:
    """A finished trial of the store as Optuna's record of it, valued by what was measured.

    What samplers see instead is the user attribute ``ranking``.
    """
    frozen = frozen_trial(trial, distributions, objective)
    if frozen.values is not None:
        score = trial.score
        frozen.user_attrs["ranking"] = frozen.values[0]
        frozen.values = list(objective.values(score))
        if objective.smaller_is_better[0] and not score.get(KEEPS_ACCURACY):
            frozen.set_constraint(KEEPS_ACCURACY, 1.0)
    return frozen


def directions_of(objective: Objective) -> list[StudyDirection]:
    """Return the directions of the ``values`` of an objective."""
    least = StudyDirection.MINIMIZE
    most = StudyDirection.MAXIMIZE
    return [least if smaller else most for smaller in objective.smaller_is_better]


def new_study(objective: Objective) -> optuna.Study:
    """An empty in-memory study that maximises every ranking; costs are negative."""
    directions = [StudyDirection.MAXIMIZE] * len(objective.names)
    return optuna.create_study(directions=directions)


def replica(trials: Sequence[Trial], space: Space, objective: Objective) -> optuna.Study:
    """An in-memory Optuna study that holds the finished trials, for plots and analysis.

    Their values are the metric and the costs as measured. Optuna's own ``best_trial`` has the
    largest; ours (``Objective.best``) may be another where luck explains the difference.
    """
    with quiet_optuna():
        study = optuna.create_study(directions=directions_of(objective))
        known = distributions_of(space)
        study.add_trials([measured_trial(t, known, objective) for t in trials if t.finished])
    return study


def quiet_optuna() -> contextlib.AbstractContextManager[None]:
    """Keep Optuna's log lines and experimental warnings off the user's terminal."""
    return quieted("optuna", logging.ERROR, optuna.exceptions.ExperimentalWarning)
