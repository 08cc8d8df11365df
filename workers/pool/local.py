"""LocalPool: requests run in this process, one after the other, when results are asked for."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

from workers.errors import WorkerError
from workers.messages import Handle
from workers.pool.jobs import DEFAULT_RUNNER, JobQueue, RunnerFactory, load_factory
from workers.pool.protocol import Finished, Loss
from workers.worker import RequestRunner, answer


class LocalPool:
    """The pool "inline": for tests, small models and debuggers. See ``WorkerPool``.

    Args:
        runner: factory of what runs the requests, or its import path.
    """

    def __init__(self, runner: RunnerFactory | str = DEFAULT_RUNNER) -> None:
        self._factory = load_factory(runner) if isinstance(runner, str) else runner
        self._runner: RequestRunner | None = None
        self._jobs = JobQueue(max_attempts=1)
        self._values: dict[str, Any] = {}

    @property
    def num_workers(self) -> int:
        """1: this process."""
        return 1

    @property
    def pending(self) -> int:
        """Requests queued."""
        return len(self._jobs) + self._jobs.unreported

    def put(self, value: Any) -> Handle:
        """See ``WorkerPool.put``."""
        from workers.large_values import content_key

        handle = Handle(content_key(value))
        self._values[handle.key] = value
        return handle

    def submit(self, tag: Hashable, request: Any, group: Hashable = None, lost: int = 0) -> None:
        """See ``WorkerPool.submit``."""
        self._jobs.add(tag, request, group, lost)

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """Run the next request and return how it ended; the timeout cannot interrupt it."""
        done = self._jobs.next_finished()
        if done is not None:
            return done
        job = self._jobs.take()
        if job is not None:
            if self._runner is None:
                self._runner = self._factory(self._fetch)
            self._jobs.done(job, *answer(self._runner, job.request, "this process"))
        return self._jobs.next_finished()

    def take_losses(self) -> list[Loss]:
        """See ``WorkerPool.take_losses``."""
        return self._jobs.take_losses()

    def drop(self, tags: Collection[Hashable]) -> None:
        """See ``WorkerPool.drop``."""
        self._jobs.drop(tags)

    def give_back(self, finished: Iterable[Finished]) -> None:
        """See ``WorkerPool.give_back``."""
        self._jobs.give_back(finished)

    def cancel_all(self) -> None:
        """Drop queued requests."""
        self._jobs.clear()

    def close(self) -> None:
        """Forget the runner, its caches and stored values."""
        self._jobs.clear()
        self._values.clear()
        self._runner = None

    def _fetch(self, handle: Handle) -> Any:
        if handle.key not in self._values:
            raise WorkerError(f"the handle {handle.key[:12]} was put into another pool")
        return self._values[handle.key]
