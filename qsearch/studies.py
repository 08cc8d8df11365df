"""What is asked of studies, in a run folder or a storage, and done with them. Part of
``qsearch.api``.

``folder`` is a run folder or a folder of run folders; where neither it nor ``storage`` is told, the
study is looked for in QSEARCH_STORAGE, the working directory and ``runs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsearch.store.records import CommandKind
    from qsearch.study_address import StudyAddress

PathLike = str | os.PathLike[str]


def find_study(
    folder: PathLike | None = None, *, storage: str | None = None, study: str | None = None
) -> StudyAddress:
    """The one place that is meant.

    Raises:
        StoreError: nothing was searched there.
        SettingsError: there are several run folders.
    """
    return _address(folder, storage, study)


def status(
    folder: PathLike | None = None, *, storage: str | None = None, study: str | None = None
) -> list[dict[str, Any]]:
    """One row per study of a run folder, a folder of run folders, or a storage.

    Raises:
        StoreError: nothing was searched there, or none of it can be read.
    """
    from qsearch.report.listing import rows_of_studies
    from qsearch.study_address import find_studies

    return rows_of_studies(find_studies(_path(folder), storage, study))


def trials(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    states: Iterable[str] | None = None,
    stage: str | None = None,
    least: Mapping[str, float] | None = None,
    sort: str | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """One row per trial of a study, by number or as ``sort`` says.

    Args:
        states, stage: only these.
        least: metric name → least value.
        sort: column; ``-`` before it puts the greatest first.
        limit: rows at most.
    """
    from qsearch.report.listing import TrialFilter, trial_rows

    wanted = TrialFilter(tuple(states or ()), stage, dict(least or {}), sort, limit)
    return trial_rows(_address(folder, storage, study), wanted)


def best(
    folder: PathLike | None, *, storage: str | None = None, study: str | None = None
) -> dict[str, Any]:
    """The winner of a study: scores, parameters, whole configuration, module.

    Raises:
        SearchFailedError: no trial was completed.
    """
    from qsearch.managing import best_of

    return best_of(_address(folder, storage, study))


def trial(
    folder: PathLike | None, number: int, *, storage: str | None = None, study: str | None = None
) -> dict[str, Any]:
    """All that is known of one trial: its row, configuration, failure, shards and logs."""
    from qsearch.managing import trial_of

    return trial_of(_address(folder, storage, study), number)


def compare(studies: Sequence[PathLike], *, storage: str | None = None) -> list[dict[str, Any]]:
    """One row per study beside one another; run folders, or names in ``storage``."""
    from qsearch.managing import compared

    if storage is None:
        return compared([_address(folder, None, None) for folder in studies])
    return compared([_address(None, storage, str(name)) for name in studies])


def stop(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    kind: CommandKind = "stop",
) -> tuple[str, int]:
    """Ask every driver of a study to stop in good order, to pause, or to resume.

    Returns:
        The study's name, and how many drivers are listening.
    """
    from qsearch.managing import command

    return command(_address(folder, storage, study), kind)


def delete(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    force: bool = False,
) -> str:
    """Forget a study with all its trials; of a run folder also the files. The study's name.

    Raises:
        SettingsError: it is being searched, and ``force`` was not said.
    """
    from qsearch.managing import delete as delete_study

    return delete_study(_address(folder, storage, study), even_if_running=force)


def export_optuna(
    folder: PathLike | None,
    url: str,
    *,
    storage: str | None = None,
    study: str | None = None,
    name: str | None = None,
) -> tuple[str, int]:
    """Write a study into an Optuna storage; its name there, and how many trials.

    Raises:
        SettingsError: the name is taken there, or the storage cannot be used.
    """
    from qsearch.managing import export_optuna as write

    return write(_address(folder, storage, study), url, name)


def migrate_store(folder: PathLike | None, *, storage: str | None = None) -> tuple[str, str]:
    """Bring a store of an older version to the schema this version needs; both schemas.

    Raises:
        StoreError: there is no such store, or it is of a newer version.
    """
    from qsearch.store.engine import migrate

    return migrate(_storage(folder, storage))


def check_store(folder: PathLike | None, *, storage: str | None = None) -> tuple[str | None, str]:
    """The schema of a store (None: it holds no study), and the one this version needs."""
    from qsearch.store.engine import schema_version

    return schema_version(_storage(folder, storage))


def _address(folder: PathLike | None, storage: str | None, study: str | None) -> StudyAddress:
    from qsearch.study_address import find_study

    return find_study(_path(folder), storage, study)


def _storage(folder: PathLike | None, storage: str | None) -> str:
    return _address(folder, storage, None).url


def _path(folder: PathLike | None) -> Path | None:
    return None if folder is None else Path(folder)
