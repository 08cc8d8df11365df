"""Studies and trials of a storage as rows, for commands that only look."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from compiler.errors import legal_names
from qsearch.choices import TRIAL_STATES
from qsearch.errors import SettingsError
from qsearch.report.build import trial_row
from qsearch.search.objectives import Objective
from qsearch.store.engine import open_reader
from qsearch.store.records import Study
from qsearch.store.repository import Repository


def study_rows(storage: str, name: str | None = None) -> list[dict[str, Any]]:
    """How studies stand: state, finished of wanted trials, the best score.

    Raises:
        StoreError: no such storage or study.
    """
    with _opened(storage) as repository:
        studies = repository.studies() if name is None else [repository.study(name)]
        return [_study_row(repository, study) for study in studies]


def trial_rows(
    storage: str, name: str | None, states: Iterable[str] | None
) -> list[dict[str, Any]]:
    """Trials of one study, by number.

    Raises:
        StoreError: no such storage or study, or several studies and no name.
        SettingsError: an unknown state.
    """
    wanted = None if states is None else list(states)
    for state in wanted or ():
        if state not in TRIAL_STATES:
            raise SettingsError(
                f"unknown trial state {state!r}",
                where="state",
                fix=legal_names(state, TRIAL_STATES),
            )
    with _opened(storage) as repository:
        study = repository.study(name) if name is not None else _only_study(repository)
        return [trial_row(trial) for trial in repository.trials_of(study.id, states=wanted)]


def _only_study(repository: Repository) -> Study:
    studies = repository.studies()
    if len(studies) != 1:
        names = ", ".join(study.name for study in studies) or "none"
        raise SettingsError(
            f"the storage holds {len(studies)} studies", where=names, fix="name one with --study"
        )
    return studies[0]


def _study_row(repository: Repository, study: Study) -> dict[str, Any]:
    counts = repository.count_trials(study.id)
    objective = Objective(str(study.spec["metric"]))
    best = objective.best(repository.trials_of(study.id, states=["complete"]))
    return {
        "study": study.name,
        "model": study.model_name,
        "state": study.state,
        "stopped": study.stopped,
        "trials": f"{counts.finished}/{study.target_trials}",
        "metric": objective.metric,
        "best": objective.value(best.outcome.score or {}) if best is not None else None,
        "best_trial": best.number if best is not None else None,
        **counts.report(),
    }


@contextlib.contextmanager
def _opened(storage: str) -> Iterator[Repository]:
    repository = Repository(open_reader(storage))
    try:
        yield repository
    finally:
        repository.close()
