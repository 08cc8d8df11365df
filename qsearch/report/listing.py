"""A stored study that a command opens, and rows for its tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from qsearch.errors import SettingsError
from qsearch.run.run_folder import StudyAddress
from qsearch.store.engine import open_engine, open_reader
from qsearch.store.records import Study, Trial
from qsearch.store.repository import Repository


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


@contextlib.contextmanager
def opened(address: StudyAddress, *, writing: bool = False) -> Iterator[tuple[Repository, Study]]:
    """The repository and the study at an address.

    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
    """
    url = address.url
    if writing:
        engine = open_engine(url, create=False)
    else:
        engine = open_reader(url)
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
