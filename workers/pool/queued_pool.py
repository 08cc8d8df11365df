"""QueuedPool: what pools do alike: the queue, stored values, waiting, deadlines, lost workers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from workers.errors import WorkerError
from workers.messages import Handle
from workers.object_store import content_key
from workers.pool.jobs import Job, JobQueue
from workers.pool.protocol import Finished, Loss

FAILED_STARTS = 3
"""Workers that may die in a row before they have started."""
_POLL_S = 1.0


@dataclass(slots=True, eq=False)
class Slot:
    """One worker of a pool.

    Attributes:
        number: unique in the pool; the worker that replaces a dead one has another.
        ready: it has started.
        job: what it runs; None while it is idle or starts.
        deadline: monotonic seconds at which it counts as dead.
    """

    number: int
    ready: bool = False
    job: Job | None = None
    deadline: float = math.inf


S = TypeVar("S", bound=Slot)


class QueuedPool(ABC, Generic[S]):
    """The part of ``WorkerPool`` that does not depend on what a worker is.

    Args:
        num_workers: workers at the same time.
        max_attempts: runs of a request whose workers die, before it ends with LostWorkerError.
        request_timeout_s: a worker busy longer counts as dead; None waits for ever.
    Raises:
        WorkerError: a number below 1.
    """

    def __init__(
        self, num_workers: int, max_attempts: int, request_timeout_s: float | None = None
    ) -> None:
        if num_workers < 1:
            raise WorkerError(f"a pool of {num_workers} workers", fix="at least 1")
        self._count = num_workers
        self._request_timeout_s = request_timeout_s
        self._jobs = JobQueue(max_attempts)
        self._values: dict[str, Any] = {}
        self._slots: list[S] = []
        self._numbers = 0
        self._failed_starts = 0

    @property
    def num_workers(self) -> int:
        """Workers that run at the same time."""
        return self._count

    @property
    def pending(self) -> int:
        """Requests queued, running, or ended and not reported."""
        running = sum(slot.job is not None for slot in self._slots)
        return len(self._jobs) + running + self._jobs.unreported

    def put(self, value: Any) -> Handle:
        """A worker gets the value with the first request that needs it."""
        handle = Handle(content_key(value))
        self._values[handle.key] = value
        return handle

    def submit(self, tag: Hashable, request: Any, group: Hashable = None, lost: int = 0) -> None:
        self._jobs.add(tag, request, group, lost)

    def wait_ready(self, timeout_s: float) -> int:
        end = time.monotonic() + timeout_s
        left = timeout_s
        while not self._num_ready:
            self._advance(min(left, _POLL_S))
            left = end - time.monotonic()
            if left <= 0:
                break
        return self._num_ready

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """None at once when nothing is pending.

        Raises:
            WorkerError: workers cannot be started, or run other code than this process.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            done = self._jobs.next_finished()
            if done is not None or self.pending == 0:
                return done
            left = _POLL_S if end is None else max(0.0, end - time.monotonic())
            self._advance(min(left, _POLL_S))
            if end is not None and time.monotonic() >= end:
                return self._jobs.next_finished()

    def take_losses(self) -> list[Loss]:
        return self._jobs.take_losses()

    def drop(self, tags: Collection[Hashable]) -> None:
        self._jobs.drop(tags)

    def give_back(self, finished: Iterable[Finished]) -> None:
        self._jobs.give_back(finished)

    @property
    def _num_ready(self) -> int:
        return sum(slot.ready for slot in self._slots)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @abstractmethod
    def _advance(self, timeout_s: float) -> None:
        """Hand out jobs, wait for news of the workers, take them in."""

    @abstractmethod
    def _run(self, slot: S, job: Job) -> None:
        """Send a job to an idle worker."""

    @abstractmethod
    def _end(self, slot: S) -> None:
        """Kill a worker and forget it."""

    def _dispatch(self) -> None:
        """Give every idle worker a job."""
        for slot in list(self._slots):
            if not slot.ready or slot.job is not None:
                continue
            slot.job = self._jobs.take(slot.number)
            if slot.job is not None:
                timeout_s = self._request_timeout_s
                slot.deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
                self._run(slot, slot.job)

    def _done(self, slot: S, result: Any, error: Exception | None) -> None:
        """The worker answered its job."""
        job, slot.job, slot.deadline = slot.job, None, math.inf
        # While some workers work, whatever kills others at their start is no reason to give up.
        self._failed_starts = 0
        if job is not None:
            self._jobs.done(job, result, error)

    def _lost(self, slot: S, why: str, log: str | None) -> None:
        """The worker of a job died: the job is tried again, or ends with LostWorkerError."""
        job, slot.job = slot.job, None
        self._jobs.release(slot.number)
        if job is not None:
            self._jobs.lost(job, str(slot), why, log)

    def _fails_to_start(self) -> bool:
        """Count a worker that died before it had started; whether there were too many."""
        self._failed_starts += 1
        return self._failed_starts >= FAILED_STARTS

    def _late(self) -> list[S]:
        """Workers whose deadline has passed."""
        now = time.monotonic()
        return [slot for slot in self._slots if now > slot.deadline]

    def cancel_all(self) -> None:
        """Busy workers are killed; others take their place."""
        self._jobs.clear()
        for slot in list(self._slots):
            if slot.job is not None:
                slot.job = None
                self._end(slot)
