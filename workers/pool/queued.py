"""QueuedPool: what pools do alike, whatever their workers are: the queue, and stored values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from workers.messages import Handle
from workers.pool.jobs import JobQueue
from workers.pool.protocol import Finished, Loss


class QueuedPool(ABC):
    """The part of ``WorkerPool`` that needs no worker.

    Args:
        max_attempts: runs of a request whose workers die, before it ends with LostWorkerError.
    """

    def __init__(self, max_attempts: int) -> None:
        self._jobs = JobQueue(max_attempts)
        self._values: dict[str, Any] = {}

    @property
    @abstractmethod
    def running(self) -> int:
        """Requests that workers are busy with."""

    @property
    def pending(self) -> int:
        """Requests queued, running, or ended and not reported."""
        return len(self._jobs) + self.running + self._jobs.unreported

    def put(self, value: Any) -> Handle:
        """See ``WorkerPool.put``; a worker gets the value with the first request that needs it."""
        from workers.object_store import content_key

        handle = Handle(content_key(value))
        self._values[handle.key] = value
        return handle

    def submit(self, tag: Hashable, request: Any, group: Hashable = None, lost: int = 0) -> None:
        """See ``WorkerPool.submit``."""
        self._jobs.add(tag, request, group, lost)

    def take_losses(self) -> list[Loss]:
        """See ``WorkerPool.take_losses``."""
        return self._jobs.take_losses()

    def drop(self, tags: Collection[Hashable]) -> None:
        """See ``WorkerPool.drop``."""
        self._jobs.drop(tags)

    def give_back(self, finished: Iterable[Finished]) -> None:
        """See ``WorkerPool.give_back``."""
        self._jobs.give_back(finished)
