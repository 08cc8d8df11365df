"""LocalPool: requests run in this process, one after the other, when results are asked for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from workers.errors import WorkerError
from workers.messages import Handle
from workers.pool.jobs import DEFAULT_RUNNER, JobQueue, RunnerFactory, load_factory
from workers.pool.protocol import Finished
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

    def submit(self, tag: Hashable, request: Any) -> None:
        """See ``WorkerPool.submit``."""
        self._jobs.add(tag, request)

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """Run the next request and return how it ended; the timeout cannot interrupt it."""
        if len(self._jobs):
            if self._runner is None:
                self._runner = self._factory(self._fetch)
            job = self._jobs.take()
            self._jobs.done(job, *answer(self._runner, job.request, "this process"))
        return self._jobs.next_finished()

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
