"""The study's row: found, checked against what is asked for now, or made."""

from __future__ import annotations

import json
from typing import Any

from qsearch.errors import RunFolderError, TakenError
from qsearch.progress import Progress
from qsearch.run_folder import RunFolder
from qsearch.search.preparation import PreparedStudy
from qsearch.settings import Settings
from qsearch.store.records import NewStudy, Study
from qsearch.store.repository import Repository
from workers.code_version import code_version


def open_study(
    repository: Repository,
    settings: Settings,
    prepared: PreparedStudy,
    folder: RunFolder,
    progress: Progress,
) -> Study:
    """The study to go on with, or a new one.

    Raises:
        RunFolderError: the study of this name is about another model, data or search.
    """
    name = study_name(settings, folder)
    version = code_version()
    found = repository.find_study(name)
    if found is not None and settings.fresh:
        repository.delete_study(found.id)
        found = None
    if found is None:
        new = NewStudy(
            name=name,
            model_name=prepared.source.name,
            model_sha256=prepared.source.sha256,
            spec=prepared.spec,
            spec_hash=prepared.spec_hash,
            seed=settings.seed,
            target_trials=settings.trials,
            code_version=version,
        )
        try:
            found = repository.create_study(new)
        except TakenError:  # another driver of this study was quicker by a moment
            found = repository.study(name)
        else:
            repository.add_event(found.id, "started")
            return found
    check_same_study(found, prepared, folder, batch_told=settings.batch is not None)
    if found.code_version != version:
        progress.message("note: the code changed since this study began; finished trials are kept")
        repository.set_code_version(found.id, version)
    repository.set_target(found.id, settings.trials)
    repository.set_study_state(found.id, "running")
    repository.add_event(found.id, "resumed")
    return repository.study(name)


def study_name(settings: Settings, folder: RunFolder) -> str:
    """Name of the study in the storage: as told, or the folder's."""
    return settings.study or folder.path.absolute().name


def check_same_study(
    found: Study, prepared: PreparedStudy, folder: RunFolder, *, batch_told: bool = True
) -> None:
    """Refuse to go on with a study that is about something else.

    Args:
        batch_told: False lets a study keep its batch size on a machine of another size.
    Raises:
        RunFolderError: another model, other data, or another search.
    """
    if found.spec_hash == prepared.spec_hash:
        return
    if found.model_sha256 != prepared.source.sha256:
        raise RunFolderError(
            f"the study {found.name!r} belongs to another model: {found.model_name}",
            where=f"{folder.path} (sha256 {found.model_sha256[:12]}, this one "
            f"{prepared.source.sha256[:12]})",
            fix="choose another folder with -o (or another --study), or start over with --fresh",
        )
    differing = sorted(
        name
        for name in {*found.spec, *prepared.spec}
        if found.spec.get(name) != prepared.spec.get(name)
    )
    if differing == ["batch"] and not batch_told:
        return
    changes = ", ".join(
        f"{name}: {_short(found.spec.get(name))} → {_short(prepared.spec.get(name))}"
        for name in differing
    )
    raise RunFolderError(
        f"the study {found.name!r} was begun with other settings: {changes}",
        where=str(folder.path),
        fix="give the same settings to resume, choose another folder with -o, or use --fresh",
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:20]}…"
