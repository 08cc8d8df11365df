"""Jobs: what is queued, how often it was tried, and what ended; shared by the pools."""

from __future__ import annotations

import dataclasses
import importlib
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from workers.errors import LostWorkerError, WorkerError
from workers.messages import Handle
from workers.pool.protocol import Finished
from workers.worker import Fetch, RequestRunner

RunnerFactory = Callable[[Fetch], RequestRunner]

DEFAULT_RUNNER = "workers.worker:Worker"
"""Import path of the factory that each worker calls once."""

MAX_ATTEMPTS = 3


def load_factory(path: str) -> RunnerFactory:
    """The factory behind ``module:name``."""
    module, _, name = path.partition(":")
    factory: RunnerFactory = getattr(importlib.import_module(module), name)
    return factory


@dataclass(frozen=True, slots=True)
class Job:
    """One request and the attempt it is on, 1 at first."""

    tag: Hashable
    request: Any
    attempt: int = 1

    def __str__(self) -> str:
        return f"request {self.tag!r} ({type(self.request).__name__}), attempt {self.attempt}"


class JobQueue:
    """Queued jobs in order and finished ones; a lost worker's job goes to the front again."""

    def __init__(self, max_attempts: int) -> None:
        if max_attempts < 1:
            raise WorkerError(f"max_attempts {max_attempts}", fix="at least 1")
        self._max_attempts = max_attempts
        self._waiting: deque[Job] = deque()
        self._finished: deque[Finished] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, tag: Hashable, request: Any) -> None:
        """Queue a request."""
        self._waiting.append(Job(tag, request))

    def take(self) -> Job:
        """The job to run next."""
        return self._waiting.popleft()

    def done(self, job: Job, result: Any, error: Exception | None) -> None:
        """A job ended."""
        self._finished.append(Finished(job.tag, result, error, job.attempt))

    def lost(self, job: Job, where: str, why: str) -> None:
        """The worker of a job died: try again, or give up after ``max_attempts``."""
        if job.attempt < self._max_attempts:
            self._waiting.appendleft(dataclasses.replace(job, attempt=job.attempt + 1))
            return
        error = LostWorkerError(
            f"{job} lost its worker: {why}",
            where=where,
            fix="the configuration may need more memory than a worker has; lower the number of "
            "workers, or see the log of the machine",
        )
        self._finished.append(Finished(job.tag, None, error, job.attempt))

    def next_finished(self) -> Finished | None:
        """The job that ended first and was not reported yet."""
        return self._finished.popleft() if self._finished else None

    @property
    def unreported(self) -> int:
        """Ended but not yet reported."""
        return len(self._finished)

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._finished.clear()


def handles_of(request: Any) -> dict[str, Handle]:
    """Fields of a request that are handles."""
    if not dataclasses.is_dataclass(request):
        return {}
    found = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    return {name: value for name, value in found.items() if isinstance(value, Handle)}
