"""The folder of one run: what lies where, whose it is, and whether we may write there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from compiler.errors import nearest
from qsearch.errors import RunFolderError, SettingsError, StoreError, system_errors
from qsearch.process import file_lock

PathLike = str | os.PathLike[str]
Check = Callable[[], None]
"""Raises when what a search stands on is no longer there, or no longer the same."""

_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])( *\..*)?", re.IGNORECASE)
FOLDER_NAMES: Final = (
    "up to 64 letters, digits and _ . -; begin with a letter or a digit, end with no dot, and take "
    "no name of a device, such as aux or con.1"
)
_OWNER: Final = re.compile(r"^# model_sha256: ([0-9a-f]{64})$", re.MULTILINE)
_IMPORTED: Final = re.compile(r"^# imported: (.+)$", re.MULTILINE)
_MODEL: Final = re.compile(r"^model: (.+?)(?:  #.*)?$", re.MULTILINE)
_LONGEST: Final = 4000
"""Letters of a setting that is read from a configuration."""
_MAX_CONFIG: Final = 1 << 20
"""Letters of a configuration; no run writes a longer one."""


class _Entry:
    """The path of an entry of a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _owner: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run folder; nothing is created before ``prepare``."""

    path: Path

    config = _Entry("config.resolved.yaml")
    """Every setting as it was used; can be given to ``-c``."""
    database = _Entry("study.db")
    """The store, unless ``--storage`` names another."""
    module = _Entry("best.qmod")
    """The winner."""
    qconfig = _Entry("qconfig.json")
    """The winner's configuration."""
    report = _Entry("report.json")
    """Result of the search, as JSON."""
    log = _Entry("run.log")
    """Log of the packages."""
    preprocess = _Entry("preprocess.yaml")
    """Preparation of images as inputs."""
    proof = _Entry("proof.json")
    """Proof that ``qsearch verify`` derived for the winner."""
    launch_log = _Entry("launch.log")
    """Output of a search that the dashboard started."""
    artifacts = _Entry("artifacts")
    """Float module, statistics and baseline outputs, for resuming."""
    data = _Entry("data")
    """Inputs that came as Python objects, as .npz files."""
    _lock = _Entry(".lock")
    _earlier = _Entry(".earlier")
    """The study that ``--fresh`` replaces, until the new one has a trial."""
    _moving = _Entry(".moving")
    """A part of the earlier study, while it is moved aside or back."""

    @property
    def imports(self) -> str:
        """The options that named the own code of its search, for a message; "" where none did."""
        return " ".join(f"--import {word}" for word in _IMPORTED.findall(self._config_text()))

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Check]:
        """Create the folder and keep other runs out of it while the block lasts.

        Yields:
            a check that raises RunFolderError once the folder was deleted or moved.
        Raises:
            RunFolderError: it cannot be written, or another process uses it.
        """
        self._check_writable()
        busy = RunFolderError(
            "another process is searching in this run folder",
            where=str(self.path),
            fix="wait for it, stop it, or choose another folder with -o",
        )
        with file_lock(self._lock, busy) as is_there:
            self._end_move()

            def check() -> None:
                if not is_there():
                    raise RunFolderError(
                        "the run folder was deleted or moved while a search used it",
                        where=str(self.path),
                        fix="put the folder back and run the same command again; without it the "
                        "command starts over (trials in another --storage are kept)",
                    )

            yield check

    def check_owner(self, model_sha256: str) -> None:
        """Make sure that what lies in the folder is this model's.

        Args:
            model_sha256: of the model file.
        Raises:
            RunFolderError: it belongs to another model.
        """
        owner = self.owner()
        if owner is not None and owner[0] != model_sha256:
            raise RunFolderError(
                f"the run folder belongs to another model: {owner[1]}",
                where=f"{self.path} (sha256 {owner[0][:12]}, this one {model_sha256[:12]})",
                fix="choose another folder with -o, or start over with --fresh",
            )

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Set aside what an earlier run left here, and put it back at the end of the block.

        ``forget_earlier`` deletes it, and then nothing is put back.
        """
        if self._earlier.is_dir():  # of a run that was killed before it had a trial
            self.clear()
        else:
            self._moving.mkdir()
            self._move(self.path, self._moving)
            self._moving.rename(self._earlier)
        try:
            yield
        finally:
            if self._earlier.is_dir():
                self.clear()
                self._earlier.rename(self._moving)
                self._end_move()

    def forget_earlier(self) -> None:
        """Delete the study that ``renewed`` set aside, in this process or one that was killed."""
        shutil.rmtree(self._earlier, ignore_errors=True)

    def _end_move(self) -> None:
        """Put the earlier study back where a move was cut."""
        if self._moving.is_dir():
            self._move(self._moving, self.path)
            self._moving.rmdir()

    def _move(self, source: Path, target: Path) -> None:
        """Move what a run writes, and nothing else."""
        for path in self._written():
            place = source / path.name
            if place.exists():
                place.rename(target / path.name)

    def owner(self) -> tuple[str, str] | None:
        """sha256 and name of the model the folder was made for."""
        text = self._config_text()
        sha256 = _OWNER.search(text)
        model = _MODEL.search(text)
        if sha256:
            return (sha256[1], model[1] if model else "?")
        return None

    def setting(self, name: str) -> str | None:
        """A setting as the last run used it; None where the folder does not say."""
        line = re.search(rf"^{name}: .{{1,{_LONGEST}}}$", self._config_text(), re.MULTILINE)
        try:
            found = None if line is None else yaml.safe_load(line[0])[name]
        except (ValueError, RecursionError, yaml.YAMLError):
            return None
        if isinstance(found, str | int | float):
            return str(found)
        return None

    def _config_text(self) -> str:
        unreadable = contextlib.suppress(OSError, UnicodeDecodeError)
        with unreadable, self.config.open(encoding="utf-8") as stream:
            return stream.read(_MAX_CONFIG)
        return ""

    def results(self) -> list[Path]:
        """The files that a search left for people and tools, as far as they are there."""
        found = (self.module, self.qconfig, self.report, self.proof, self.config)
        return [path for path in found if path.is_file()]

    def _written(self) -> list[Path]:
        """The files and folders that a run writes."""
        files = [self.module, self.qconfig, self.report, self.proof, self.config]
        files += [self.preprocess, self.log, self.artifacts, self.data]
        return files + [Path(f"{self.database}{end}") for end in ("", "-wal", "-shm", ".lock")]

    def clear(self) -> None:
        """Delete what a run writes, and nothing else."""
        for path in self._written():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """``clear``, and the folder itself where nothing else lies in it; call it ``in_use``."""
        self.clear()
        self.forget_earlier()
        for path in (self.launch_log, self._lock):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # refused while it holds files of others

    def _check_writable(self) -> None:
        with system_errors(
            RunFolderError,
            "the run folder cannot be written",
            where=str(self.path)[:300],
            fix="choose a folder you may write to with -o",
        ):
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()


def is_device_name(name: str) -> bool:
    """Return whether Windows takes the name of a file for that of a device, whatever its suffix."""
    return _DEVICE.fullmatch(name) is not None


def is_folder_name(name: str) -> bool:
    """Return whether a name of a stranger may become that of a folder, on any file system."""
    plain = _FOLDER_NAME.fullmatch(name) is not None and not name.endswith(".")
    return plain and not is_device_name(name)


def confined(root: Path, name: str) -> Path:
    """The path of an entry of ``root`` that a stranger named.

    Raises:
        SettingsError: no name for a folder, or a link that leads elsewhere.
    """
    path = root / name
    if not is_folder_name(name) or not path.resolve().is_relative_to(root.resolve()):
        raise SettingsError(
            f"{name[:80]!r} is no name for a study",
            where="name",
            fix=f"use {FOLDER_NAMES}",
        )
    return path


def module_at(path: Path) -> Path:
    """The path of a module: of the winner, where ``path`` is a run folder.

    Raises:
        RunFolderError: a folder in which no search wrote one.
    """
    if not path.is_dir():
        return path
    module = RunFolder(path).module
    if not module.is_file():
        raise RunFolderError(
            f"there is no {module.name} in {path}",
            where=str(path.absolute()),
            fix="`qsearch launch` writes it as soon as one trial is complete",
        )
    return module


_EVALUATION: Final = re.compile(r"^# evaluation: (.+) \(sha256 [0-9a-f]+\)$", re.MULTILINE)


def evaluation_data(folder: Path) -> tuple[str, str | None] | None:
    """Data that the search of a run folder scored on, and the file that prepares its images.

    None where the folder is none of a run, or its data are not there from where we are.
    """
    run = RunFolder(folder)
    found = _EVALUATION.search(run._config_text())
    if found is None:
        return None
    if Path(found[1]).exists():
        path = Path(found[1])
    else:
        path = run.data / "eval.npz"
    if not path.exists():
        return None
    return str(path), str(run.preprocess) if path.is_dir() else None


# Where a study lies -----------------------------------------------------------------------------


RUNS: Final = Path("runs")
"""Folder of the run folders of ``qsearch launch``."""
STORAGE_VARIABLE: Final = "QSEARCH_STORAGE"


@dataclass(frozen=True, slots=True)
class StudyAddress:
    """Address of a study: its run folder, or its storage and name; one of them is given.

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
        """The database."""
        if self.storage is not None:
            return self.storage
        assert self.folder is not None
        return f"sqlite:///{RunFolder(self.folder).database}"


def find_study(
    folder: PathLike | None = None, storage: str | None = None, name: str | None = None
) -> StudyAddress:
    """The one address that is meant.

    Args:
        folder: run folder, or a folder of run folders. Where neither it nor a storage is set, it
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
    folder: PathLike | None = None, storage: str | None = None, name: str | None = None
) -> list[StudyAddress]:
    """Every address that may be meant, at least one; see ``find_study``.

    Raises:
        StoreError: nothing was searched there.
    """
    if storage is None and folder is None:
        storage = os.environ.get(STORAGE_VARIABLE) or None
    named = None if folder is None else Path(folder)
    if storage is not None:
        return [StudyAddress(named, storage, name)]
    root = named or (Path() if _is_run(Path()) else RUNS)
    if _is_run(root):
        return [_of_run(root, name)]
    inside = run_folders(root)
    if not inside:
        raise _nothing(root, told=folder is not None)
    if meant := [path for path in inside if path.name == name]:
        return [_of_run(path, None) for path in meant]
    return [_of_run(path, name) for path in inside]


def run_folders(root: Path) -> list[Path]:
    """The run folders in a folder, by name."""
    with contextlib.suppress(OSError):
        return sorted(path for path in root.iterdir() if _is_run(path))
    return []


def _is_run(folder: Path) -> bool:
    run = RunFolder(folder)
    return run.database.is_file() or run.owner() is not None


def _of_run(folder: Path, name: str | None) -> StudyAddress:
    """The study of a run folder; its configuration says which storage held it."""
    address = StudyAddress(folder, None, name)
    run = RunFolder(folder)
    if run.database.is_file():
        return address
    kept = run.setting("storage")
    study = run.setting("study")
    if not kept:
        raise StoreError(
            "the run folder has lost its database",
            where=str(run.database),
            fix="run `qsearch launch` again",
        )
    if "***" in kept:
        storage = os.environ.get(STORAGE_VARIABLE)
    else:
        storage = kept
    if not storage:
        raise StoreError(
            f"the study of {folder} lies in a storage with a password, which is not kept",
            where=kept,
            fix=f"set {STORAGE_VARIABLE}, or give --storage URL --study {study}",
        )
    return replace(address, storage=storage, name=name or study)


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
