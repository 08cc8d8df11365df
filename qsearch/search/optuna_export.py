"""A study as Optuna stores it, for ``optuna-dashboard`` and other tools of that world."""

from __future__ import annotations

from collections.abc import Sequence

import optuna

from qsearch.errors import SettingsError
from qsearch.search.objectives import Objective
from qsearch.search.replica import distributions_of, frozen_trial, quiet_optuna
from qsearch.search.space import Space
from qsearch.store.records import Trial


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
