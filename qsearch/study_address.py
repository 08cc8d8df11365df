"""Where a study lies: in a run folder, in one of several, or in a storage by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from compiler.errors import nearest
from qsearch.errors import SettingsError, StoreError
from qsearch.run_folder import RunFolder

RUNS: Final = Path("runs")
"""Where ``qsearch launch`` puts run folders."""
STORAGE_VARIABLE: Final = "QSEARCH_STORAGE"


@dataclass(frozen=True, slots=True)
class StudyAddress:
    """Which study: of a run folder, or of a storage by name.

    Attributes:
        folder: run folder, whose database is meant where ``storage`` names none.
        storage: database URL.
        name: in the storage; None where there is only one study.
    """

    folder: Path | None = None
    storage: str | None = None
    name: str | None = None

    @property
    def url(self) -> str:
        """The database.

        Raises:
            SettingsError: neither folder nor storage was given.
        """
        if self.storage is not None:
            return self.storage
        if self.folder is None:
            raise SettingsError(
                "no study was named",
                where="folder, --storage",
                fix="give a run folder, or --storage URL",
            )
        return f"sqlite:///{RunFolder(self.folder).database}"


def find_study(
    folder: Path | None = None, storage: str | None = None, name: str | None = None
) -> StudyAddress:
    """The one address that is meant.

    Args:
        folder: run folder, or a folder of run folders. Where neither it nor a storage is told, it
            is QSEARCH_STORAGE, the working directory, or ``runs``.
        storage: database URL.
        name: of the study, or of its run folder.
    Raises:
        StoreError: nothing was searched there.
        SettingsError: there are several.
    """
    found = find_studies(folder, storage, name)
    if len(found) > 1:
        raise SettingsError(
            f"{len(found)} run folders were found and none was named",
            where=str(RUNS if folder is None else folder),
            fix=f"name one: {', '.join(str(address.folder) for address in found)}",
        )
    return found[0]


def find_studies(
    folder: Path | None = None, storage: str | None = None, name: str | None = None
) -> list[StudyAddress]:
    """Every address that may be meant, at least one; see ``find_study``.

    Raises:
        StoreError: nothing was searched there.
    """
    if storage is None and folder is None:
        storage = os.environ.get(STORAGE_VARIABLE) or None
    if storage is not None:
        return [StudyAddress(folder, storage, name)]
    root = folder if folder is not None else Path() if _is_run(Path()) else RUNS
    if _is_run(root):
        return [_of_run(root, name)]
    inside = run_folders(root)
    if not inside:
        raise _nothing(root, told=folder is not None)
    named = [path for path in inside if path.name == name]
    if named:
        return [_of_run(path, None) for path in named]
    return [_of_run(path, name) for path in inside]


def run_folders(root: Path) -> list[Path]:
    """The run folders in a folder, by name."""
    try:
        return sorted(path for path in root.iterdir() if _is_run(path))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    run = RunFolder(folder)
    return run.database.is_file() or run.owner() is not None


def _of_run(folder: Path, name: str | None) -> StudyAddress:
    """The study of a run folder; its configuration says which storage held it."""
    address = StudyAddress(folder, None, name)
    if RunFolder(folder).database.is_file():
        return address
    config = _config(folder)
    storage, study = config.get("storage"), config.get("study")
    if not storage:
        raise StoreError(
            "the run folder has lost its database",
            where=str(RunFolder(folder).database),
            fix="run `qsearch launch` again",
        )
    if "***" in storage:
        storage = os.environ.get(STORAGE_VARIABLE)
    if not storage:
        raise StoreError(
            f"the study of {folder} lies in a storage with a password, which is not kept",
            where=config["storage"],
            fix=f"set {STORAGE_VARIABLE}, or give --storage URL --study {study}",
        )
    return replace(address, storage=storage, name=name or study)


def _config(folder: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(RunFolder(folder).config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _nothing(root: Path, *, told: bool) -> StoreError:
    around = run_folders(root.parent) + run_folders(RUNS)
    close = nearest(root.name, [path.name for path in around])
    known = next((path for path in around if close and path.name == close[0]), None)
    fix = "run `qsearch launch` first" + ("" if told else ", or name a run folder or --storage")
    return StoreError(
        "no study was found",
        where=str(root.absolute()),
        fix=fix if known is None else f"did you mean {known}?",
    )
