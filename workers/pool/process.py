"""ProcessPool: own worker processes with a pipe each; the death of one touches only its request.

Not concurrent.futures: there a killed worker breaks the whole pool. Workers are fresh interpreters
(``python -m workers.pool.process_worker``), so neither a fork of running onnxruntime threads nor a
second import of the user's main script takes place.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from workers.code_version import code_version
from workers.errors import WorkerError
from workers.pool.jobs import DEFAULT_RUNNER, MAX_ATTEMPTS, Job, handles_of, log_tail
from workers.pool.protocol import Finished, WorkerSize
from workers.pool.python_path import python_path
from workers.pool.queued import QueuedPool

START_TIMEOUT_S = 120.0
"""How long a fresh worker may take until it reports ready."""

_STOP_TIMEOUT_S = 3.0
_FAILED_STARTS = 3
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(slots=True, eq=False)
class _Process:
    """One worker: its process, our end of the pipe, what it knows and does."""

    number: int
    popen: subprocess.Popen[bytes]
    pipe: Connection
    log: str
    started: float
    ready: bool = False
    known: set[str] = field(default_factory=set)
    job: Job | None = None
    deadline: float | None = None

    def __str__(self) -> str:
        return f"worker process {self.number} (pid {self.popen.pid})"


class ProcessPool(QueuedPool):
    """The pool "process". See ``WorkerPool``; not for use from several threads at once.

    Args:
        num_workers: processes, started now.
        max_attempts: runs of a request whose workers die, before it ends with LostWorkerError.
        request_timeout_s: a worker busy longer is killed and counts as dead; None waits for ever.
        runner: import path of what each worker runs.
        size: memory a worker may allocate, and its threads.
    """

    def __init__(
        self,
        num_workers: int,
        max_attempts: int = MAX_ATTEMPTS,
        request_timeout_s: float | None = None,
        runner: str = DEFAULT_RUNNER,
        size: WorkerSize | None = None,
    ) -> None:
        if num_workers < 1:
            raise WorkerError(f"a pool of {num_workers} workers", fix="at least 1")
        super().__init__(max_attempts)
        self._request_timeout_s = request_timeout_s
        self._runner = runner
        self._size = size or WorkerSize()
        self._logs = tempfile.TemporaryDirectory(prefix="qsearch-workers-")
        self._count = num_workers
        self._next_number = 0
        self._failed_starts = 0
        self._closed = False
        self._processes: list[_Process] = []
        self._refill()

    @property
    def num_workers(self) -> int:
        """Worker processes."""
        return self._count

    @property
    def running(self) -> int:
        """Processes that are busy with a request."""
        return sum(process.job is not None for process in self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, for tests and the log."""
        return [process.popen.pid for process in self._processes]

    def wait_ready(self, timeout_s: float) -> int:
        """See ``WorkerPool.wait_ready``."""
        end = time.monotonic() + timeout_s
        left = timeout_s
        while not self._num_ready:
            self._step(left)
            left = end - time.monotonic()
            if left <= 0:
                break
        return self._num_ready

    @property
    def _num_ready(self) -> int:
        return sum(process.ready for process in self._processes)

    def submit(self, tag: Hashable, request: Any, group: Hashable = None, lost: int = 0) -> None:
        """See ``WorkerPool.submit``."""
        super().submit(tag, request, group, lost)
        self._step(0.0)

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """See ``WorkerPool.next_finished``; None at once when nothing is pending.

        Raises:
            WorkerError: workers cannot be started, or run other code than this process.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            done = self._jobs.next_finished()
            if done is not None or self.pending == 0:
                return done
            left = 1.0 if end is None else max(0.0, end - time.monotonic())
            self._step(min(left, 1.0))
            if end is not None and time.monotonic() >= end:
                return self._jobs.next_finished()

    def cancel_all(self) -> None:
        """See ``WorkerPool.cancel_all``: busy workers are killed and replaced."""
        self._jobs.clear()
        for process in list(self._processes):
            if process.job is not None:
                process.job = None
                self._bury(process)
        self._refill()

    def close(self) -> None:
        """See ``WorkerPool.close``."""
        self._closed = True
        self._jobs.clear()
        for process in self._processes:
            if process.job is not None or not process.ready:
                process.popen.kill()
            process.pipe.close()  # an idle worker ends when its pipe does
        for process in self._processes:
            try:
                process.popen.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self._processes.clear()
        self._values.clear()
        self._logs.cleanup()

    def _step(self, timeout_s: float) -> None:
        """Hand out jobs, wait for news, take them in."""
        self._refill()
        self._dispatch()
        pipes = {process.pipe: process for process in self._processes}
        for pipe in wait(list(pipes), timeout_s):
            assert isinstance(pipe, Connection)
            self._receive(pipes[pipe])
        now = time.monotonic()
        for process in list(self._processes):
            if process.deadline is not None and now > process.deadline:
                self._lost(process, f"no answer within {self._request_timeout_s} s")
            elif not process.ready and now > process.started + START_TIMEOUT_S:
                self._lost(process, f"not ready within {START_TIMEOUT_S:.0f} s")
        self._refill()
        self._dispatch()

    def _refill(self) -> None:
        if self._closed:
            raise WorkerError("the pool is closed")
        while len(self._processes) < self._count:
            self._processes.append(self._start())

    def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        for name in _ONE_THREAD:
            environment.setdefault(name, str(max(1, int(self._size.cpus))))
        environment["PYTHONPATH"] = python_path()
        # -P: a folder called workers where the user stands must not hide ours.
        module = ["-P", "-m", "workers.pool.process_worker"]
        limit = str(self._size.memory_bytes or 0)
        command = [sys.executable, *module, str(theirs.fileno()), self._runner, limit]
        log = Path(self._logs.name) / f"{self._next_number}.log"
        try:
            with log.open("wb") as stderr:
                popen = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=stderr,
                    env=environment,
                )
        except OSError as error:
            ours.close()
            raise WorkerError(f"cannot start a worker process: {error}") from error
        finally:
            theirs.close()
        self._next_number += 1
        pipe = Connection(ours.detach())
        return _Process(self._next_number, popen, pipe, str(log), time.monotonic())

    def _dispatch(self) -> None:
        for process in list(self._processes):
            if process.ready and process.job is None:
                process.job = self._jobs.take(process.number)
                if process.job is None:
                    continue
                if self._request_timeout_s is not None:
                    process.deadline = time.monotonic() + self._request_timeout_s
                try:
                    self._send(process, process.job)
                except OSError:
                    self._lost(process, self._end_of(process))

    def _send(self, process: _Process, job: Job) -> None:
        for handle in handles_of(job.request).values():
            if handle.key in self._values and handle.key not in process.known:
                process.pipe.send(("put", handle.key, self._values[handle.key]))
                process.known.add(handle.key)
        process.pipe.send(("run", job.request))

    def _receive(self, process: _Process) -> None:
        try:
            message = process.pipe.recv()
        except (EOFError, OSError):
            self._lost(process, self._end_of(process))
            return
        if message[0] == "ready":
            if message[1] != code_version():
                raise WorkerError(
                    "a worker process runs other code than the driver",
                    where=f"worker: {message[1]}; driver: {code_version()}",
                    fix="a source file changed while the search ran: start it again",
                )
            process.ready = True
            self._failed_starts = 0
        elif process.job is not None:
            job, process.job, process.deadline = process.job, None, None
            # While some work, whatever kills others at their start is no reason to give up.
            self._failed_starts = 0
            self._jobs.done(job, message[1], message[2])

    def _lost(self, process: _Process, why: str) -> None:
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                last_words = (log_tail(process.log) or "").splitlines()[-1:]
                self._bury(process)
                raise WorkerError(
                    f"{self._failed_starts} worker processes in a row did not start: {why}",
                    where="; ".join(
                        [f"{sys.executable} -m workers.pool.process_worker", *last_words]
                    ),
                    fix=(
                        "give --worker-memory more, 1G or so"
                        if self._size.memory_bytes
                        else "check that Python environment, or use --pool inline"
                    ),
                )
        job, log = process.job, log_tail(process.log)
        self._bury(process)
        if job is not None:
            self._jobs.lost(job, str(process), why, log)

    def _bury(self, process: _Process) -> None:
        process.popen.kill()
        process.popen.wait()
        process.pipe.close()
        self._jobs.release(process.number)
        if process in self._processes:
            self._processes.remove(process)

    @staticmethod
    def _end_of(process: _Process) -> str:
        """Why a worker whose pipe is closed ended."""
        try:
            code = process.popen.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
