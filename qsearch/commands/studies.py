"""Questions to stored studies, and changes of them.

``folder`` is a run folder or a folder of run folders; where neither it nor ``storage`` is set, the
study is looked for in QSEARCH_STORAGE, the working directory and ``runs``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from qsearch.errors import NoModuleError, SettingsError, StoreError
from qsearch.report.build import trial_details, trial_row
from qsearch.report.listing import opened, trial_of, with_all_columns
from qsearch.report.measures import Measures, front_numbers
from qsearch.report.pareto import extremes, front_of
from qsearch.report.trial_table import TrialTable
from qsearch.run.run_folder import RunFolder, StudyAddress, find_studies, find_study
from qsearch.search.objectives import Objective, accuracies_in
from qsearch.search.trying import fields_of_text, wish
from qsearch.settings.parameters import (
    Count,
    File,
    Folder,
    Number,
    Storage,
    Studies,
    Study,
)
from qsearch.store.engine import open_reader
from qsearch.store.records import CommandKind, listening
from qsearch.store.records import Study as StoredStudy
from qsearch.store.repository import Repository
from qsearch.store.view_queries import NO_NOTE, Note, TrialPoint

log = logging.getLogger("qsearch.commands.studies")


def status(
    folder: Folder = None, *, storage: Storage = None, study: Study = None
) -> list[dict[str, Any]]:
    """One row per study of a run folder, a folder of run folders, or a storage.

    State, finished of wanted trials, the best score, the run folder. Of several places those that
    cannot be read are passed over, and named in the log.

    Args:
        folder: run folder, or folder of run folders (runs)
        study: only this study
    Raises:
        StoreError: nothing was searched there, or none of it can be read.
    """
    rows: list[dict[str, Any]] = []
    problems: list[StoreError] = []
    addresses = find_studies(folder, storage, study)
    for address in addresses:
        where = None if address.folder is None else str(address.folder)
        try:
            with contextlib.closing(Repository(open_reader(address.url))) as repository:
                name = address.name
                if name is None:
                    studies = repository.studies()
                else:
                    studies = [repository.study(name)]
                found = [_study_row(repository, each) for each in studies]
        except StoreError as error:
            problems.append(error)
            continue
        rows += [{**row, "folder": where} for row in found]
    if problems and len(problems) == len(addresses):
        raise problems[0]
    for problem in problems:
        log.warning("passed over: %s", problem)
    return rows


def trials(
    folder: Folder = None,
    filter: str = "",
    sort: str = "number",
    limit: Count | None = None,
    *,
    storage: Storage = None,
    study: Study = None,
) -> list[dict[str, Any]]:
    """One row per trial of a study.

    Args:
        filter: terms that must hold: 'state=complete sqnr_db>35 size<=80%'
        sort: columns to sort by, -COLUMN for the greatest first
        limit: at most N rows
    """
    with opened(find_study(folder, storage, study)) as (repository, named):
        trials = {t.number: t for t in repository.trials_of(named.id)}
        points = [TrialPoint.of(trial) for trial in trials.values()]
        notes = repository.newest_notes(named.id)
        measures = Measures.of(named, points)
        table = TrialTable(points, measures, front_numbers(measures, points), notes)
        numbers = [point.number for point in table.chosen(filter, sort)[:limit]]
        return with_all_columns(
            [{**trial_row(trials[n]), **_written(notes.get(n, NO_NOTE))} for n in numbers]
        )


def _study_row(repository: Repository, study: StoredStudy) -> dict[str, Any]:
    """Return the row of a study."""
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
        "metric": objective.names[0],
        "best": objective.shown(best.score) if best is not None else None,
        "best_trial": best.number if best is not None else None,
        "drivers": len(repository.drivers_of(study.id, running=True)),
        **counts.report(),
        **_written(repository.newest_notes(study.id).get(None, NO_NOTE)),
    }


def _written(note: Note) -> dict[str, str]:
    """Return people's notes in the dashboard, as columns."""
    return {"note": note.note, "tags": " ".join(note.tags)}


def best(
    folder: Folder = None,
    *,
    storage: Storage = None,
    study: Study = None,
    trial: Number | None = None,
    smallest: bool = False,
    fastest: bool = False,
) -> dict[str, Any]:
    """The winner of a study: scores, parameters, whole configuration, module.

    Args:
        trial: this trial instead of the best one
        smallest: of the trials within the limits the one with the fewest bytes
        fastest: of the trials within the limits the fastest, where the search timed them
    Raises:
        NoModuleError: no trial was completed, or none within the limits that has the cost.
        SettingsError: there is no trial of that number, or several trials are asked for.
    """
    if (trial is not None) + smallest + fastest > 1:
        raise SettingsError(
            "several trials are asked for",
            where="best",
            fix="choose one of --trial, --smallest and --fastest",
        )
    if smallest:
        extreme = "smallest"
    elif fastest:
        extreme = "fastest"
    else:
        extreme = None
    address = find_study(folder, storage, study)
    with opened(address) as (repository, named):
        objective = Objective.of(named.spec)
        complete = repository.trials_of(named.id, states=["complete"])
        best_one = objective.best(complete)
        if trial is None:
            winner = best_one
        else:
            winner = trial_of(repository, named, trial)
        if extreme is not None:
            winner = extremes(complete, objective).get(extreme)
            if complete and winner is None:
                raise NoModuleError(
                    f"no trial of study {named.name!r} within {' and '.join(objective.limits)} "
                    f"can be called the {extreme}",
                    where=f"--{extreme}",
                    fix="search with a looser limit; for the fastest with --minimize latency",
                )
        if winner is None:
            from qsearch.search.result import nothing_found  # imports what builds modules

            trials = repository.trials_of(named.id)
            found = nothing_found(trials, f"study {named.name!r} in {address.url}", named.stopped)
            raise NoModuleError(found.what, where=found.where, fix=found.fix)
        if address.folder is not None:
            module = RunFolder(address.folder).module
        else:
            module = None
        is_best = best_one is not None and winner.number == best_one.number
        written = module is not None and is_best and module.is_file()
        scores = {one.number: one.score for one in complete}
        return {
            "study": named.name,
            **trial_details(winner),
            "baseline": dict(named.baseline or {}),
            "qconfig": dict(winner.qconfig),
            **({"front": front_of(complete, objective)} if objective.minimize else {}),
            "luck": objective.explained(winner.number, scores) if is_best else None,
            "module": str(module) if written else None,
        }


def compare(studies: Studies, *, storage: Storage = None) -> list[dict[str, Any]]:
    """Return one row per study.

    Args:
        storage: storage that holds the studies
    """
    if storage is None:
        addresses = [find_study(folder) for folder in studies]
    else:
        addresses = [find_study(None, storage, str(name)) for name in studies]
    rows = []
    for address in addresses:
        with opened(address) as (repository, study):
            objective = Objective.of(study.spec)
            complete = repository.trials_of(study.id, states=["complete"])
            best = objective.best(complete)
            row = _study_row(repository, study)
            spent = [t.outcome.run_cpu_s or 0.0 for t in complete if not t.outcome.from_store]
            rows.append(
                {
                    **{name: row[name] for name in ("study", "model", "state", "trials")},
                    "baseline_top1": (study.baseline or {}).get("top1"),
                    **accuracies_in({} if best is None else best.score),
                    "best_trial": None if best is None else best.number,
                    "cpu_s_per_trial": sum(spent) / len(spent) if spent else None,
                    "params": None if best is None else dict(best.params),
                }
            )
    return with_all_columns(rows)


def stop(
    folder: Folder = None,
    *,
    storage: Storage = None,
    study: Study = None,
    kind: CommandKind = "stop",
) -> tuple[str, int]:
    """Ask every driver of a study to stop in good order, to pause, or to resume.

    Returns:
        The study's name, and how many drivers are listening.
    """
    with opened(find_study(folder, storage, study), writing=True) as (repository, named):
        drivers = repository.drivers_of(named.id, running=True)
        repository.add_command(named.id, kind)
        return named.name, listening(drivers)


def try_qconfig(
    folder: Folder = None,
    qconfig: File | None = None,
    *,
    storage: Storage = None,
    study: Study = None,
) -> tuple[str, int]:
    """Have a configuration evaluated next.

    Args:
        qconfig: a qconfig.json, or k=v,… that differ from the first trial
    Returns:
        The study's name, and how many drivers are listening.
    """
    fields = fields_of_text(str(qconfig or ""))
    with opened(find_study(folder, storage, study), writing=True) as (repository, named):
        drivers = repository.drivers_of(named.id, running=True)
        wish(repository, named, fields)
        return named.name, listening(drivers)


def delete(
    folder: Folder = None,
    *,
    storage: Storage = None,
    study: Study = None,
    force: bool = False,
) -> str:
    """Forget a study with all its trials; of a run folder also the files. The study's name.

    Args:
        folder: run folder; either it or --study is named
        force: also delete while a search seems to run
    Raises:
        SettingsError: it is being searched, and ``force`` was not said.
    """
    address = find_study(folder, storage, study)
    with opened(address):
        pass  # before a lock is put where there is no study
    if address.folder is None:
        run = None
    else:
        run = RunFolder(address.folder)
    with contextlib.nullcontext() if run is None else run.in_use():
        name, left = _forget(address, force)
        # A folder without a database of its own has its study in the storage it names.
        if run is not None and not (run.database.is_file() if address.storage else left):
            run.remove()
    return name


def _forget(address: StudyAddress, even_if_running: bool) -> tuple[str, int]:
    """Delete the rows of a study; its name, and how many studies the storage holds now."""
    with opened(address, writing=True) as (repository, study):
        drivers = repository.drivers_of(study.id, running=True)
        alive = [d.name for d in drivers if listening([d])]
        if alive and not even_if_running:
            raise SettingsError(
                f"study {study.name!r} is being searched",
                where=", ".join(alive),
                fix="`qsearch stop` it first, or say --force when that driver is dead",
            )
        repository.delete_study(study.id)
        return study.name, len(repository.studies())
