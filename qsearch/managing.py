"""Commands about stored studies: the best, one trial, comparing, stopping, deleting, handing on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from qsearch.errors import SearchFailedError, SettingsError
from qsearch.report.build import trial_details
from qsearch.report.listing import only_study, study_row, with_all_columns
from qsearch.report.pareto import front_of
from qsearch.run_folder import RunFolder
from qsearch.search.objectives import Objective, accuracies_in
from qsearch.store.engine import open_engine, open_reader
from qsearch.store.records import CommandKind, Study
from qsearch.store.repository import Repository
from qsearch.study_address import StudyAddress


@contextlib.contextmanager
def opened(address: StudyAddress, *, writing: bool = False) -> Iterator[tuple[Repository, Study]]:
    """The repository and the study at an address.

    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
    """
    url = address.url
    repository = Repository(open_engine(url, create=False) if writing else open_reader(url))
    try:
        name = address.name
        yield repository, only_study(repository) if name is None else repository.study(name)
    finally:
        repository.close()


def best_of(address: StudyAddress) -> dict[str, Any]:
    """The winner: its row, its whole configuration, and the module where there is one.

    Raises:
        SearchFailedError: no trial was completed.
    """
    with opened(address) as (repository, study):
        objective = Objective.of(study.spec)
        best = objective.best(repository.trials_of(study.id, states=["complete"]))
        if best is None:
            raise SearchFailedError(
                f"no trial of study {study.name!r} was completed",
                where=address.url,
                fix="see `qsearch trials` for each one's reason",
            )
        module = RunFolder(address.folder).module if address.folder is not None else None
        written = module is not None and module.is_file()
        return {
            "study": study.name,
            **trial_details(best),
            "baseline": dict(study.baseline or {}),
            "qconfig": dict(best.qconfig),
            **(_front(repository, study, objective) if objective.minimize else {}),
            "module": str(module) if written else None,
        }


def trial_of(address: StudyAddress, number: int) -> dict[str, Any]:
    """All that is known of one trial: scores, configuration, failure, shards, logs.

    Raises:
        SettingsError: the study has no trial of this number.
    """
    with opened(address) as (repository, study):
        found = repository.trials_by_number(study.id, [number])
        if not found:
            raise SettingsError(
                f"study {study.name!r} has no trial {number}",
                where="--trial",
                fix="see `qsearch trials`",
            )
        (trial,) = found
        failure = trial.outcome.failure
        return {
            **trial_details(trial),
            "stage": trial.stage,
            "batch": trial.batch,
            "lost_workers": trial.lost_workers,
            "qconfig": dict(trial.qconfig),
            "config_hash": trial.config_hash,
            "work_hash": trial.work_hash,
            "error_where": failure.where if failure else None,
            "error_fix": failure.fix if failure else None,
            "shards": [
                {"shard": s.shard, "samples": s.samples, "sums": dict(s.sums), "cpu_s": s.cpu_s}
                for s in repository.shards_of(study.id, number)
            ],
            "logs": [
                {"source": entry.source, "excerpt": entry.excerpt}
                for entry in repository.logs_of(study.id, number)
            ],
        }


def compared(addresses: Sequence[StudyAddress]) -> list[dict[str, Any]]:
    """A row per study: how it stands, its best scores and configuration, what its trials cost."""
    rows = []
    for address in addresses:
        with opened(address) as (repository, study):
            objective = Objective.of(study.spec)
            complete = repository.trials_of(study.id, states=["complete"])
            best = objective.best(complete)
            row = study_row(repository, study)
            spent = [t.outcome.run_cpu_s or 0.0 for t in complete if not t.outcome.from_store]
            rows.append(
                {
                    **{name: row[name] for name in ("study", "model", "state", "trials")},
                    "baseline_top1": (study.baseline or {}).get("top1"),
                    **_scores({} if best is None else best.outcome.score or {}),
                    "best_trial": None if best is None else best.number,
                    "cpu_s_per_trial": sum(spent) / len(spent) if spent else None,
                    "params": None if best is None else dict(best.params),
                }
            )
    return with_all_columns(rows)


def command(address: StudyAddress, kind: CommandKind) -> tuple[str, int]:
    """Tell the drivers of a study something; the study's name, and how many are listening."""
    with opened(address, writing=True) as (repository, study):
        drivers = repository.drivers_of(study.id, running=True)
        repository.add_command(study.id, kind)
        return study.name, sum(time.time() - driver.beat_at < _LISTENING_S for driver in drivers)


_LISTENING_S = 60.0


def delete(address: StudyAddress, *, even_if_running: bool = False) -> str:
    """Forget a study with its trials, and with a run folder the files of its search.

    Raises:
        SettingsError: somebody drives it.
        RunFolderError: a living process searches in its folder, or files cannot be deleted there.
    """
    with opened(address):
        pass  # before a lock is put where there is no study
    folder = None if address.folder is None else RunFolder(address.folder)
    with contextlib.nullcontext() if folder is None else folder.in_use():
        name, left = _forget(address, even_if_running)
        # A folder without a database of its own has its study in the storage it names.
        if folder is not None and not (folder.database.is_file() if address.storage else left):
            folder.remove()
    return name


def _forget(address: StudyAddress, even_if_running: bool) -> tuple[str, int]:
    """Delete the rows of a study; its name, and how many studies the storage holds now."""
    with opened(address, writing=True) as (repository, study):
        drivers = repository.drivers_of(study.id, running=True)
        alive = [d.name for d in drivers if time.time() - d.beat_at < _LISTENING_S]
        if alive and not even_if_running:
            raise SettingsError(
                f"study {study.name!r} is being searched",
                where=", ".join(alive),
                fix="`qsearch stop` it first, or say --force when that driver is dead",
            )
        repository.delete_study(study.id)
        return study.name, len(repository.studies())


def export_optuna(address: StudyAddress, url: str, name: str | None = None) -> tuple[str, int]:
    """Write the study's trials into a storage of Optuna; the name there, and how many.

    Raises:
        SettingsError: there is a study of this name, or the storage cannot be used.
    """
    from qsearch.search.optuna_study import write_study
    from qsearch.search.space import Space

    with opened(address) as (repository, study):
        trials = [trial for trial in repository.trials_of(study.id) if trial.finished]
        objective = Objective.of(study.spec)
        space = Space.from_dict(study.spec["space"])
        target = name or study.name
        write_study(trials, space, objective, url, target)
        return target, len(trials)


def _front(repository: Repository, study: Study, objective: Objective) -> dict[str, Any]:
    complete = repository.trials_of(study.id, states=["complete"])
    return {"front": front_of(complete, objective)}


def _scores(score: Any) -> dict[str, Any]:
    return accuracies_in(score)
