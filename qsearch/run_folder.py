"""The folder of one run: what lies where, whose it is, and whether we may write there."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qsearch.errors import RunFolderError
from qsearch.process import file_lock

Check = Callable[[], None]
"""Raises when what a search stands on is no longer there, or no longer the same."""

_OWNER: Final = re.compile(r"^# model_sha256: ([0-9a-f]{64})$", re.MULTILINE)
_MODEL: Final = re.compile(r"^model: (.+?)(?:  #.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run folder; nothing is created before ``prepare``."""

    path: Path

    @property
    def config(self) -> Path:
        """Every setting as it was used; can be given to ``-c``."""
        return self.path / "config.resolved.yaml"

    @property
    def database(self) -> Path:
        """The store, unless ``--storage`` names another."""
        return self.path / "study.db"

    @property
    def module(self) -> Path:
        """The winner."""
        return self.path / "best.qmod"

    @property
    def qconfig(self) -> Path:
        """The winner's configuration."""
        return self.path / "qconfig.json"

    @property
    def report(self) -> Path:
        """What the search found, as JSON."""
        return self.path / "report.json"

    @property
    def log(self) -> Path:
        """What the packages logged."""
        return self.path / "run.log"

    @property
    def preprocess(self) -> Path:
        """How images became inputs."""
        return self.path / "preprocess.yaml"

    @property
    def proof(self) -> Path:
        """What ``qsearch verify`` derived from the winner."""
        return self.path / "proof.json"

    @property
    def launch_log(self) -> Path:
        """What a search printed that the dashboard started."""
        return self.path / "launch.log"

    @property
    def artifacts(self) -> Path:
        """Files by sha256: float module, statistics, baseline outputs."""
        return self.path / "artifacts"

    @property
    def data(self) -> Path:
        """Inputs that came as Python objects, spooled."""
        return self.path / "data"

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

            def check() -> None:
                if not is_there():
                    raise RunFolderError(
                        "the run folder was deleted or moved while a search used it",
                        where=str(self.path),
                        fix="put the folder back and run the same command again; without it the "
                        "command starts over (trials in another --storage are kept)",
                    )

            yield check

    def prepare(self, model_sha256: str, *, fresh: bool) -> None:
        """Make sure that what lies in the folder is this model's.

        Args:
            model_sha256: of the model file.
            fresh: forget what an earlier run left here.
        Raises:
            RunFolderError: it belongs to another model.
        """
        owner = self.owner()
        if owner is not None and owner[0] != model_sha256 and not fresh:
            raise RunFolderError(
                f"the run folder belongs to another model: {owner[1]}",
                where=f"{self.path} (sha256 {owner[0][:12]}, this one {model_sha256[:12]})",
                fix="choose another folder with -o, or start over with --fresh",
            )
        if fresh:
            self.clear()

    def owner(self) -> tuple[str, str] | None:
        """sha256 and name of the model the folder was made for."""
        try:
            text = self.config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        sha256, model = _OWNER.search(text), _MODEL.search(text)
        return (sha256[1], model[1] if model else "?") if sha256 else None

    def clear(self) -> None:
        """Delete what a run writes, and nothing else."""
        written = (self.module, self.qconfig, self.report, self.proof)
        for path in (self.config, self.preprocess, self.log, *written):
            path.unlink(missing_ok=True)
        for suffix in ("", "-wal", "-shm", ".lock"):
            Path(f"{self.database}{suffix}").unlink(missing_ok=True)
        for folder in (self.artifacts, self.data):
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """``clear``, and the folder itself where nothing else lies in it; call it ``in_use``."""
        self.clear()
        for path in (self.launch_log, self._lock):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # refused while it holds files of others

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    def _check_writable(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise RunFolderError(
                f"the run folder cannot be written: {error.strerror or error}",
                where=str(self.path),
                fix="choose a folder you may write to with -o",
            ) from error


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
