"""Searches that were started from the page: uploads by content, a process per search."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qsearch.errors import RunFolderError, SettingsError
from qsearch.run_folder import RunFolder

MAX_RUNNING: Final = 4
"""Searches that one dashboard runs at a time."""
_ID: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Starter:
    """Keeps uploads below ``root/.uploads`` and runs ``qsearch launch`` on them.

    Args:
        root: folder of run folders.
        storage: database for the searches; None gives each its own in its run folder.
        pool: where their workers run.
    """

    root: Path
    storage: str | None = None
    pool: str = "process"
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def folder(self) -> Path:
        """Where uploads lie, each under its sha256."""
        return self.root / ".uploads"

    def path(self, upload: str, suffix: str) -> Path:
        """The file of an upload.

        Raises:
            SettingsError: there is no such upload.
        """
        path = self.folder / f"{upload}{suffix}"
        if not _ID.fullmatch(upload) or not path.is_file():
            raise SettingsError(
                "there is no such upload", where=upload[:64], fix="upload the file first"
            )
        return path

    async def receive(self, chunks: AsyncIterator[bytes]) -> tuple[Path, str]:
        """Write a body to a file as it arrives; the unnamed file and its sha256."""
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as stream:
                async for chunk in chunks:
                    digest.update(chunk)
                    stream.write(chunk)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return Path(name), digest.hexdigest()

    def keep(self, file: Path, upload: str, suffix: str) -> None:
        """Give a file that was found to be good its name."""
        file.replace(self.folder / f"{upload}{suffix}")

    def launch(self, name: str, words: list[str]) -> int:
        """Start ``qsearch launch`` for the run folder of this name; its process id.

        Raises:
            RunFolderError: the folder is there already, or too many searches run.
        """
        folder = self.root / name
        with self._lock:
            running = {n: p for n, p in self._running.items() if p.poll() is None}
            self._running = running
            if len(running) >= MAX_RUNNING:
                raise RunFolderError(
                    f"{len(running)} searches were started from here and still run",
                    where=", ".join(sorted(running)),
                    fix="stop one, or wait",
                )
            if folder.exists():
                raise RunFolderError(
                    f"there is a run folder {name!r} already", where="name", fix="choose another"
                )
            self._running[name] = self._start(folder, words)
            return self._running[name].pid

    def can_resume(self, folder: RunFolder | None) -> bool:
        """Whether ``resume`` has what it needs."""
        return folder is not None and folder.config.is_file() and folder.path.parent == self.root

    def resume(self, folder: RunFolder | None) -> int:
        """Run the search of a run folder again, with its own settings; its process id."""
        assert folder is not None  # as can_resume found
        with self._lock:
            self._running[folder.path.name] = self._start(folder.path, ["-c", str(folder.config)])
            return self._running[folder.path.name].pid

    def close(self) -> None:
        """Let searches go on: they belong to the store, not to this server."""
        self._running.clear()

    def _start(self, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if k != "QSEARCH_TOKEN"}
        if self.storage is not None:
            # Other users of this machine see command lines, not environments.
            environment["QSEARCH_STORAGE"] = self.storage
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "qsearch", "launch", "-o", str(folder), *words]
        with RunFolder(folder).launch_log.open("ab") as out:
            return subprocess.Popen(
                [*command, "--pool", self.pool],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
