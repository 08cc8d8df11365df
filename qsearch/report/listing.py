"""Studies and trials of a storage as rows, for commands that only look."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from qsearch.errors import SettingsError, StoreError
from qsearch.report.build import trial_row
from qsearch.report.measures import Measures, front_numbers
from qsearch.report.trial_table import TrialTable
from qsearch.run_folder import StudyAddress
from qsearch.search.objectives import Objective
from qsearch.store.engine import open_engine, open_reader
from qsearch.store.records import Study, Trial
from qsearch.store.repository import Repository
from qsearch.store.view_queries import Note, TrialPoint

log = logging.getLogger("qsearch.report.listing")


def rows_of_studies(addresses: Sequence[StudyAddress]) -> list[dict[str, Any]]:
    """How studies stand: state, finished of wanted trials, the best score, the run folder.

    Of several places those that cannot be read are passed over, and named in the log.

    Raises:
        StoreError: no such storage or study; nothing can be read.
    """
    rows: list[dict[str, Any]] = []
    problems: list[StoreError] = []
    for address in addresses:
        folder = None if address.folder is None else str(address.folder)
        try:
            with contextlib.closing(Repository(open_reader(address.url))) as repository:
                name = address.name
                studies = repository.studies() if name is None else [repository.study(name)]
                found = [study_row(repository, study) for study in studies]
        except StoreError as error:
            problems.append(error)
            continue
        rows += [{**row, "folder": folder} for row in found]
    if problems and len(problems) == len(addresses):
        raise problems[0]
    for problem in problems:
        log.warning("passed over: %s", problem)
    return rows


def trial_rows(
    address: StudyAddress, filter: str, sort: str, limit: int | None
) -> list[dict[str, Any]]:
    """Trials of one study that pass a filter, in order; see ``trial_table``.

    Raises:
        StoreError: no such storage or study, or several studies and no name.
        SettingsError: an unknown column.
    """
    with opened(address) as (repository, study):
        trials = {t.number: t for t in repository.trials_of(study.id)}
        points = [TrialPoint.of(trial) for trial in trials.values()]
        notes, measures = repository.newest_notes(study.id), Measures.of(study, points)
        table = TrialTable(points, measures, front_numbers(measures, points), notes)
        numbers = [point.number for point in table.chosen(filter, sort)[:limit]]
        rows = [{**trial_row(trials[n]), **_written(notes.get(n))} for n in numbers]
        return with_all_columns(rows)


def _written(note: Note | None) -> dict[str, str]:
    """What people wrote in the dashboard, as columns."""
    return {
        "note": "" if note is None else note.note,
        "tags": "" if note is None else " ".join(note.tags),
    }


def with_all_columns(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without a score lack its columns: all get those of the fullest, in its order."""
    fullest = max(rows, key=len, default={})
    columns = dict.fromkeys([*fullest, *(name for row in rows for name in row)])
    return [{name: row.get(name) for name in columns} for row in rows]


def only_study(repository: Repository) -> Study:
    """The study of a storage that holds one.

    Raises:
        SettingsError: it holds none, or several.
    """
    studies = repository.studies()
    if len(studies) != 1:
        names = ", ".join(study.name for study in studies) or "none"
        raise SettingsError(
            f"the storage holds {len(studies)} studies", where=names, fix="name one with --study"
        )
    return studies[0]


def study_row(repository: Repository, study: Study) -> dict[str, Any]:
    """How a study stands, in a row."""
    counts = repository.count_trials(study.id)
    objective = Objective.of(study.spec)
    trials = repository.trials_of(study.id, states=["complete", "pruned"])
    best = objective.best(trials)
    return {
        "study": study.name,
        "model": study.model_name,
        "state": study.state,
        "stopped": study.stopped,
        "trials": f"{counts.finished}/{study.target_trials}",
        "metric": objective.metric,
        "best": objective.shown(best.outcome.score or {}) if best is not None else None,
        "best_trial": best.number if best is not None else None,
        "drivers": len(repository.drivers_of(study.id, running=True)),
        **counts.report(),
        **_written(repository.newest_notes(study.id).get(None)),
    }


@contextlib.contextmanager
def opened(address: StudyAddress, *, writing: bool = False) -> Iterator[tuple[Repository, Study]]:
    """The repository and the study at an address.

    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
    """
    url = address.url
    engine = open_engine(url, create=False) if writing else open_reader(url)
    with contextlib.closing(Repository(engine)) as repository:
        name = address.name
        yield repository, only_study(repository) if name is None else repository.study(name)


def trial_of(repository: Repository, study: Study, number: int) -> Trial:
    """The trial of a number.

    Raises:
        SettingsError: the study has no such trial.
    """
    found = repository.trials_by_number(study.id, [number])
    if not found:
        raise SettingsError(
            f"study {study.name!r} has no trial {number}",
            where="--trial",
            fix="see `qsearch trials`",
        )
    return found[0]
