"""Files that others wrote are read in a process of their own, with bounds on memory and time.

A bomb ends as an error message, not as a dead server; and reading a large module does not slow
what everybody else sees. Answers are kept by the content that was read.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qsearch.errors import SearchError

MEMORY_BYTES: Final = 4 << 30
TIME_S: Final = 120.0
MAX_ANSWER_BYTES: Final = 64 << 20
KEPT_BYTES: Final = 128 << 20
MAX_SAID_BYTES: Final = 8192
"""Of what such a process says before it fails, for the log."""

log = logging.getLogger("qsearch.dashboard.inspection")


class InspectionError(SearchError):
    """A file that cannot be read within the limits, or at all."""


@dataclass(slots=True)
class Inspection:
    """Runs ``qsearch.dashboard.inspector`` on files, one after the other.

    Args:
        memory_bytes: address space of the process.
        time_s: wall time after which it is ended.
    """

    memory_bytes: int = MEMORY_BYTES
    time_s: float = TIME_S
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _kept: OrderedDict[Any, bytes] = field(default_factory=OrderedDict)

    def ask(self, task: str, file: Path, **options: Any) -> bytes:
        """The JSON that the task gives for a file.

        Args:
            task: name in ``inspector.TASKS``.
            options: plain values.
        Raises:
            InspectionError: the file cannot be read, or not within the limits.
        """
        key = (task, _identity(file), json.dumps(options, sort_keys=True))
        with self._turn:
            if key not in self._kept:
                self._keep(key, self._run(task, file, options))
            self._kept.move_to_end(key)
            return self._kept[key]

    def _keep(self, key: Any, answer: bytes) -> None:
        self._kept[key] = answer
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _run(self, task: str, file: Path, options: Mapping[str, Any]) -> bytes:
        # The environment may hold tokens and store passwords: none of it is handed on.
        names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        words = {"file": str(file.absolute()), "memory_bytes": self.memory_bytes, **options}
        command = [sys.executable, "-m", "qsearch.dashboard.inspector", task, json.dumps(words)]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=complaints,
                    timeout=self.time_s,
                    env=environment,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise InspectionError(
                    f"reading it took longer than {self.time_s:g} s",
                    where=file.name,
                    fix="use the qsearch command on it, where no limit applies",
                ) from error
            size = out.seek(0, os.SEEK_END)
            out.seek(0)
            answer = out.read(MAX_ANSWER_BYTES + 1)
            end = complaints.seek(0, os.SEEK_END)
            complaints.seek(max(0, end - MAX_SAID_BYTES))
            said = complaints.read().decode(errors="replace")
        if size > MAX_ANSWER_BYTES:
            raise InspectionError("there is more in it than a page can show", where=file.name)
        if done.returncode == 2:
            told = json.loads(answer)
            raise InspectionError(told["what"], where=told["where"], fix=told["fix"])
        if done.returncode != 0:
            log.warning("%s of %s ended with %d", task, file.name, done.returncode)
            log.info("%s", said)
            raise InspectionError(
                "the file cannot be read within the limits",
                where=f"{file.name}: {self.memory_bytes >> 20} MiB, {self.time_s:g} s",
                fix="use the qsearch command on it, where no limit applies",
            )
        return answer


def _identity(file: Path) -> tuple[str, int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise InspectionError("there is no such file", where=file.name) from error
    return str(file), found.st_size, found.st_mtime_ns
