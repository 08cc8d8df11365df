"""Files that others wrote are read in processes of their own, with bounds on memory and time.

A bomb ends as an error message, not as a dead server; and reading a large module does not slow
what everybody else sees. Answers are kept by the content that was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response

from qsearch.errors import SearchError

MEMORY_BYTES: Final = 4 << 30
TIME_S: Final = 120.0
MAX_ANSWER_BYTES: Final = 64 << 20
KEPT_BYTES: Final = 128 << 20
PARALLEL: Final = 2
"""Questions that are computed at a time."""
WATCH_S: Final = 0.5
"""Seconds between two looks at whether a client still waits."""
EXIT_BAD_FILE: Final = 2

log = logging.getLogger("qsearch.dashboard.inspection")


class InspectionError(SearchError):
    """A file that cannot be read within the limits, or at all."""

    http_status = 422


class Reader:
    """A warm process: it has imported what reads files, and forks a child for every question.

    The environment may hold tokens and store passwords: none of it is handed on.
    """

    def __init__(self) -> None:
        names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qsearch.dashboard.inspector"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def ask(self, question: Mapping[str, Any], time_s: float) -> int | None:
        """The exit code of the child that answered; None where it was killed or took too long."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(time_s, self.end)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            told = self.process.stdout.readline()
        except OSError:
            return None
        finally:
            timer.cancel()
        if told:
            return int(told)
        return None

    def end(self) -> None:
        """Kill it with its child."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(slots=True)
class _Job:
    """A question that is being answered, and how many wait for it."""

    answer: Future[bytes] = field(default_factory=Future)
    waiting: int = 0
    reader: Reader | None = None
    given_up: bool = False


@dataclass(slots=True)
class Inspection:
    """Answers questions about files in ``qsearch.dashboard.inspector``, a few at a time.

    An answer that is kept is given at once, whatever else is computed; equal questions share one
    computation; it ends when no client waits for it any more.

    Args:
        memory_bytes: address space of a process.
        time_s: wall time after which it is ended.
    """

    memory_bytes: int = MEMORY_BYTES
    time_s: float = TIME_S
    _slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(PARALLEL))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _idle: list[Reader] = field(default_factory=list)
    _jobs: dict[Any, _Job] = field(default_factory=dict)
    _kept: OrderedDict[Any, bytes] = field(default_factory=OrderedDict)

    async def answer(self, request: Request, task: str, file: Path, **options: Any) -> Response:
        """``ask`` for a client: when the last client leaves, the work ends.

        Raises:
            InspectionError: as ``ask``.
        """
        key = self._key(task, file, options)
        found = self.known(task, file, **options)
        if found is None:
            work = asyncio.create_task(asyncio.to_thread(self.ask, task, file, **options))
            while not (await asyncio.wait({work}, timeout=WATCH_S))[0]:
                if await request.is_disconnected():
                    self._leave(key)
                    break
            found = await work
        return Response(found, media_type="application/json")

    def known(self, task: str, file: Path, **options: Any) -> bytes | None:
        """The answer where it is kept already."""
        try:
            key = self._key(task, file, options)
        except InspectionError:
            return None
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def ask(self, task: str, file: Path, **options: Any) -> bytes:
        """The JSON that the task gives for a file.

        Args:
            task: name in ``inspector.TASKS``.
            options: plain values.
        Raises:
            InspectionError: the file cannot be read, or not within the limits.
        """
        key = self._key(task, file, options)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            job = self._jobs.get(key)
            mine = job is None
            if job is None:
                job = self._jobs[key] = _Job()
            job.waiting += 1
        if mine:
            try:
                answer = self._run(job, task, file, options)
                with self._lock:
                    self._keep(key, answer)
                job.answer.set_result(answer)
            except Exception as error:
                job.answer.set_exception(error)
            with self._lock:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
        return job.answer.result()

    def close(self) -> None:
        """End every process."""
        with self._lock:
            readers = [*self._idle, *(job.reader for job in self._jobs.values() if job.reader)]
            self._idle.clear()
        for reader in readers:
            reader.end()
            reader.process.wait()

    def _leave(self, key: Any) -> None:
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return
            job.waiting -= 1
            if job.waiting == 0:
                # Whoever asks from now on gets a job of its own.
                del self._jobs[key]
                job.given_up = True
                if job.reader is not None:
                    job.reader.end()

    def _key(self, task: str, file: Path, options: Mapping[str, Any]) -> Any:
        return task, _identity(file), json.dumps(options, sort_keys=True)

    def _keep(self, key: Any, answer: bytes) -> None:
        self._kept[key] = answer
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _warm(self) -> Reader:
        while self._idle:
            reader = self._idle.pop()
            if reader.process.poll() is None:
                return reader
        return Reader()

    def _run(self, job: _Job, task: str, file: Path, options: Mapping[str, Any]) -> bytes:
        with self._slots, tempfile.TemporaryDirectory(prefix="qsearch-answer-") as folder:
            with self._lock:
                if job.given_up:
                    raise InspectionError("no client waits for it any more", where=file.name)
                reader = job.reader = self._warm()
            out = Path(folder) / "answer"
            words = {
                "file": str(file.absolute()),
                "memory_bytes": self.memory_bytes,
                "answer": str(out),
                "task": task,
                **options,
            }
            begun = time.monotonic()
            code = reader.ask(words, self.time_s)
            with self._lock:
                # From now on the reader may answer others: who leaves must not end it.
                job.reader = None
                if code is not None:
                    self._idle.append(reader)
            if code is None:
                reader.end()
                reader.process.wait()
            size = out.stat().st_size if out.is_file() else 0
            if 0 < size <= MAX_ANSWER_BYTES:
                answer = out.read_bytes()
            else:
                answer = b""
        if code is None and time.monotonic() - begun >= self.time_s:
            raise InspectionError(
                f"reading it took longer than {self.time_s:g} s",
                where=file.name,
                fix="use the qsearch command on it, where no limit applies",
            )
        if size > MAX_ANSWER_BYTES:
            raise InspectionError("there is more in it than a page can show", where=file.name)
        if code == EXIT_BAD_FILE:
            told = json.loads(answer)
            raise InspectionError(told["what"], where=told["where"], fix=told["fix"])
        if code != 0:
            log.warning("%s of %s ended with %s", task, file.name, code)
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
