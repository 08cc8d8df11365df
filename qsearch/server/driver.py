"""The driver of a job: a process of its own, which the server starts, watches and survives.

``python -m qsearch.server.driver JOB LOCK`` runs one job and stores how it ended. LOCK is an open
file that the server locked; the lock ends with the process, also when it is killed. A server that
starts again finds the jobs of running drivers locked and waits for them. A running job that is not
locked lost its driver: it is queued again, and its study continues with the trials that it has.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compiler.errors import CompilerError
from qsearch.errors import exit_code_of
from qsearch.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_SEARCH_FAILED
from qsearch.process import interrupts_kept, try_lock
from qsearch.run.run_folder import STORAGE_VARIABLE
from qsearch.server.submission import (
    OPTIONS,
    ServerOptions,
    failure_of,
    lacks_memory,
    launch_settings,
    model_name,
)
from qsearch.store.engine import open_engine
from qsearch.store.records import Failure, Job
from qsearch.store.repository import Repository
from workers.errors import BrokenRunError

MOST_DEATHS: Final = 8
"""Drivers that may die one after the other before a job counts as failed."""
STEADY_S: Final = 60.0
"""After so long a driver has made progress, and deaths are counted from 0 again."""
KILL_S: Final = 60.0
"""Seconds that a driver may take to write the best so far once it is told to end."""
_SECRETS: Final = ("QSEARCH_TOKEN", STORAGE_VARIABLE)
_DELAY_S: Final = 5.0
_LONGEST_DELAY_S: Final = 300.0

log = logging.getLogger("qsearch.server")


def delay_after(deaths: int) -> float:
    """Seconds before the next driver starts: none after the first death, then more and more."""
    return 0.0 if deaths < 2 else min(_DELAY_S * 2 ** (deaths - 2), _LONGEST_DELAY_S)


# Seen from the server -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """A driver that this server started, or found when it started itself."""

    process: subprocess.Popen[bytes] | None
    since: float
    told_to_end: float | None = None


@dataclass(slots=True)
class Drivers:
    """Starts the drivers of a server's jobs and finds those that died."""

    options: ServerOptions
    repository: Repository
    _running: dict[int, _Running] = field(default_factory=dict)

    def start(self, job: Job) -> None:
        """Start the driver of a job; it inherits the lock of the job."""
        taken = self._taken(job)
        if taken is not None:
            self.repository.end_job(job.id, "failed", EXIT_BAD_INPUT, taken)
            return
        folder = self.options.folder_of(job)
        folder.path.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if k not in _SECRETS}
        with contextlib.ExitStack() as open_files:
            lock = open_files.enter_context(self._lock_path(job.id).open("a"))
            if not try_lock(lock.fileno()):
                # A driver that the server took for dead still ends.
                self.repository.requeue_job(job.id, job.attempts, _DELAY_S)
                return
            out = open_files.enter_context(folder.launch_log.open("ab"))
            process = subprocess.Popen(
                [sys.executable, "-m", "qsearch.server.driver", str(job.id), str(lock.fileno())],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
            )
        self._running[job.id] = _Running(process, time.monotonic())
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; the next step sees that
            # Not in the environment or on the command line: the storage may have a password.
            process.stdin.write(OPTIONS.dump_json(self.options))
            process.stdin.close()
        self.repository.note_driver(job.id, process.pid)

    def is_alive(self, job: Job) -> bool:
        """Return whether a driver holds the lock of the job, whichever server started it."""
        known = self._running.get(job.id)
        if known is not None and known.process is not None:
            known.process.poll()  # reaps it
        with self._lock_path(job.id).open("a") as lock:
            lives = not try_lock(lock.fileno())
        if lives and known is None:
            self._running[job.id] = _Running(None, time.monotonic())
        return lives

    def watch(self, job: Job) -> None:
        """End the driver of a cancelled job."""
        if not job.cancelled or job.pid is None:
            return
        known = self._running[job.id]
        now = time.monotonic()
        first = known.told_to_end is None
        if first or now - (known.told_to_end or now) >= KILL_S:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGTERM if first else signal.SIGKILL)
            known.told_to_end = now

    def reap(self, gone: Job) -> None:
        """Queue the job of a driver that ended again, unless the driver stored an outcome."""
        known = self._running.pop(gone.id, None)
        # Read after the lock: a driver stores the outcome, then releases it.
        job = self.repository.job(gone.id)
        if job is None or job.state != "running":
            return
        if job.cancelled:
            self.repository.end_job(job.id, "cancelled")
            return
        self._take_back(job)
        steady = known is not None and time.monotonic() - known.since >= STEADY_S
        deaths = 1 if steady else job.attempts + 1
        log.warning("the driver of %s died (%d in a row)", job.name, deaths)
        if deaths >= MOST_DEATHS:
            why = Failure(
                f"its driver died {deaths} times in a row",
                self.options.folder_of(job).launch_log.name,
                "the log in its run folder may say why"
                + (", such as too little --max-memory" if self.options.max_memory else "")
                + "; then submit it again",
            )
            self.repository.end_job(job.id, "failed", EXIT_SEARCH_FAILED, why)
            return
        self.repository.requeue_job(job.id, deaths, delay_after(deaths))

    def _taken(self, job: Job) -> Failure | None:
        """Explain why a job may not begin: the shared database has a study of its name by now."""
        fresh = self.options.storage is not None and job.settings and job.study_id is None
        if not fresh or self.repository.find_study(job.name) is None:
            return None
        what = f"the storage has another study {job.name!r}"
        return Failure(what, "name", "submit it under another name")

    def _take_back(self, job: Job) -> None:
        """Requeue the trials of a driver of this machine that is dead, before its lease ends."""
        if self.options.storage is not None:
            study = self.repository.find_study(job.name)
        else:
            study = None
        if study is None or job.pid is None:
            return
        name = f"{socket.gethostname()}:{job.pid}"
        drivers = self.repository.drivers_of(study.id, running=True)
        dead = [driver.id for driver in drivers if driver.name == name]
        if dead:
            self.repository.requeue(dead)
            self.repository.end_drivers(dead)

    def _lock_path(self, job_id: int) -> Path:
        return self.options.jobs / f"{job_id}.lock"


def note_study(repository: Repository, options: ServerOptions, job: Job) -> None:
    """Keep which study of a shared database the driver of a job made, once it is there."""
    if options.storage is None:
        study = None
    else:
        study = repository.find_study(job.name)
    if study is None or study.id == job.study_id or job.started_at is None:
        return
    if not job.settings or study.created_at >= job.started_at:
        repository.note_study(job.id, study.id)


# The process itself -------------------------------------------------------------------------------


def main(job_id: int, lock: int) -> None:
    """Run a job to its end, or until a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.set_inheritable(lock, False)
    options = OPTIONS.validate_json(sys.stdin.read())
    if options.max_memory is not None:
        # Not RLIMIT_AS: threads and Ray reserve addresses that they never use.
        resource.setrlimit(resource.RLIMIT_DATA, (options.max_memory, options.max_memory))
    queue = Repository(open_engine(options.queue_url, create=False))
    job = queue.job(job_id)
    if job is None or job.state != "running":
        return
    queue.close()  # it connects again at the end: a server has few connections for many drivers
    try:
        code = _search(job, options)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenRunError as error:
        _broken(queue, job, failure_of(error, job, options))
        return
    except Exception as error:
        traceback.print_exc()
        note_study(queue, options, job)
        code = EXIT_SEARCH_FAILED
        if isinstance(error, CompilerError) and not lacks_memory(error):
            code = exit_code_of(error)
        queue.end_job(job_id, "failed", code, failure_of(error, job, options))
        return
    note_study(queue, options, job)
    if code != EXIT_INTERRUPTED:
        queue.end_job(job_id, "done", code)
        return
    now = queue.job(job_id)
    if now is not None and now.cancelled:
        queue.end_job(job_id, "cancelled", code)
    else:  # another process ended it, such as a shutdown of the machine
        queue.requeue_job(job_id, job.attempts)


def _search(job: Job, options: ServerOptions) -> int:
    with interrupts_kept():
        from qsearch.run.progress import Progress
        from qsearch.search.launch import run_search

    found = run_search(
        launch_settings(job, options), model_name=model_name(job), progress=Progress()
    )
    return int(found.exit_code)


def _broken(queue: Repository, job: Job, failure: Failure) -> None:
    """Queue a job again whose cluster or data were lost, with the reason."""
    deaths = job.attempts + 1
    if deaths >= MOST_DEATHS:
        queue.end_job(job.id, "failed", EXIT_SEARCH_FAILED, failure)
    else:
        queue.requeue_job(job.id, deaths, delay_after(deaths + 1), failure)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    gc.freeze()  # as in qsearch.__main__
