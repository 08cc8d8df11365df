"""ProcessPool: own worker processes with a pipe each; the death of one touches only its request.

Not concurrent.futures: there a killed worker breaks the whole pool. Workers are fresh interpreters
(``python -m workers.pool.process_worker``), so neither a fork of running onnxruntime threads nor a
second import of the user's main script takes place.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from workers.errors import WorkerError
from workers.messages import Handle
from workers.pool.endings import is_own_fault, oom_kills
from workers.pool.queued_pool import (
    Job,
    QueuedPool,
    Slot,
    with_handles,
)
from workers.process import log_tail, python_path

START_TIMEOUT_S = 120.0
"""Seconds that a fresh worker may take until it reports ready."""

_STOP_TIMEOUT_S = 3.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(slots=True, eq=False, kw_only=True)
class _Process(Slot):
    """A worker process: our end of its pipe, its log, the values and the code that it holds, and
    how often memory was lacking before its request."""

    popen: subprocess.Popen[bytes]
    pipe: Connection
    log: str
    known: set[str] = field(default_factory=set)
    imported: bool = False
    oom_kills: int = 0

    def __str__(self) -> str:
        return f"worker process {self.number} (pid {self.popen.pid})"


class ProcessPool(QueuedPool[_Process]):
    """The pool "process", whose workers start with its first use.

    Not for use from several threads at once.
    """

    _closed = False

    @functools.cached_property
    def _logs(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="qsearch-workers-")

    def close(self) -> None:
        self._closed = True
        self._jobs.clear()
        for process in self._slots:
            if process.job is not None or not process.ready:
                process.popen.kill()
            process.pipe.close()  # an idle worker ends when its pipe does
        for process in self._slots:
            try:
                process.popen.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self._slots.clear()
        self._values.clear()
        self._logs.cleanup()

    def _advance(self, timeout_s: float) -> None:
        self._refill()
        self._dispatch()
        pipes = {process.pipe: process for process in self._slots}
        for pipe in wait(list(pipes), timeout_s):
            assert isinstance(pipe, Connection)
            self._receive(pipes[pipe])
        for process in self._late():
            if process.ready:
                self._died(process, f"no answer within {self._request_timeout_s} s", True)
            else:
                self._died(process, f"not ready within {START_TIMEOUT_S:.0f} s", False)
        self._refill()
        self._dispatch()

    def _refill(self) -> None:
        if self._closed:
            raise WorkerError("the pool is closed")
        while len(self._slots) < self._count:
            self._slots.append(self._start())

    def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        for name in _ONE_THREAD:
            environment.setdefault(name, str(max(1, int(self._size.cpus))))
        environment["PYTHONPATH"] = python_path()
        # -P: a folder called workers where the user stands must not hide ours.
        module = ["-P", "-m", "workers.pool.process_worker"]
        limit = str(self._size.memory_bytes or 0)
        command = [sys.executable, *module, str(theirs.fileno()), self._runner_path, limit]
        number = next(self._numbers)
        log = Path(self._logs.name) / f"{number}.log"
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
        return _Process(
            number=number,
            deadline=time.monotonic() + START_TIMEOUT_S,
            popen=popen,
            pipe=Connection(ours.detach()),
            log=str(log),
        )

    def _run(self, slot: _Process, job: Job) -> None:
        slot.oom_kills = oom_kills()
        try:
            if self._code and not slot.imported:
                slot.pipe.send(("import", self._code))
                slot.imported = True

            def sent(handle: Handle) -> Handle:
                if handle.key in self._values and handle.key not in slot.known:
                    slot.pipe.send(("put", handle.key, self._values[handle.key]))
                    slot.known.add(handle.key)
                return handle

            slot.pipe.send(("run", with_handles(job.request, sent)))
        except OSError:
            self._died(slot, *self._end_of(slot))

    def _receive(self, process: _Process) -> None:
        try:
            message = process.pipe.recv()
        except (EOFError, OSError):
            self._died(process, *self._end_of(process))
            return
        if message[0] == "done":
            self._done(process, message[1], message[2])
            return
        fix = "a source file changed while the search ran: start it again"
        self._greeted(process, message[1], fix)

    def _died(self, process: _Process, why: str, own_fault: bool) -> None:
        log = log_tail(process.log)
        self._lost(process, why, log, own_fault)
        self._end(process)
        if not process.ready:
            last_words = (log or "").splitlines()[-1:]
            self._count_failed_start(
                f"worker processes in a row did not start: {why}",
                "; ".join([f"{sys.executable} -m workers.pool.process_worker", *last_words]),
                "give --worker-memory more, 1G or so"
                if self._size.memory_bytes
                else "check that Python environment, or use --pool inline",
            )

    def _end(self, slot: _Process) -> None:
        slot.popen.kill()
        slot.popen.wait()
        slot.pipe.close()
        self._jobs.release(slot.number)
        if slot in self._slots:
            self._slots.remove(slot)

    @staticmethod
    def _end_of(process: _Process) -> tuple[str, bool]:
        """Explain the end of a worker whose pipe is closed, and whether its request's own fault
        ended it."""
        try:
            code = process.popen.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe", True
        kills = oom_kills()
        own_fault = is_own_fault(code, process.oom_kills, kills)
        if own_fault and -code == signal.SIGKILL:
            lacking = ", as memory was lacking"
        else:
            lacking = ""
        if code >= 0:
            return f"exit code {code}", own_fault
        return f"killed by {signal.Signals(-code).name}{lacking}", own_fault
