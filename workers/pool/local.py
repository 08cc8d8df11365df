"""LocalPool: requests run in this process, one after the other, when results are asked for."""

from __future__ import annotations

from typing import Any

from workers.errors import WorkerError
from workers.messages import Handle
from workers.pool.jobs import DEFAULT_RUNNER, RunnerFactory, load_factory
from workers.pool.protocol import Finished
from workers.pool.queued import QueuedPool
from workers.worker import RequestRunner, answer


class LocalPool(QueuedPool):
    """The pool "inline": for tests, small models and debuggers. See ``WorkerPool``.

    Args:
        runner: factory of what runs the requests, or its import path.
    """

    def __init__(self, runner: RunnerFactory | str = DEFAULT_RUNNER) -> None:
        super().__init__(max_attempts=1)
        self._factory = load_factory(runner) if isinstance(runner, str) else runner
        self._runner: RequestRunner | None = None

    @property
    def num_workers(self) -> int:
        """1: this process."""
        return 1

    @property
    def running(self) -> int:
        """0: a request runs while its result is asked for."""
        return 0

    def wait_ready(self, timeout_s: float) -> int:
        """1, at once."""
        return 1

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
