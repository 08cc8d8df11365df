"""InlinePool: requests run in this process, one after the other, when results are asked for."""

from __future__ import annotations

from typing import Any

from workers.errors import WorkerError
from workers.messages import Handle
from workers.pool.queued_pool import (
    DEFAULT_RUNNER,
    Job,
    QueuedPool,
    RunnerFactory,
    Slot,
    load_factory,
)
from workers.worker import RequestRunner, answer


class InlinePool(QueuedPool[Slot]):
    """The pool "inline": for tests, small models and debuggers. See ``WorkerPool``.

    Args:
        runner: factory of what runs the requests, or its import path.
    """

    def __init__(self, runner: RunnerFactory | str = DEFAULT_RUNNER) -> None:
        super().__init__(num_workers=1, max_attempts=1)
        self._factory = load_factory(runner) if isinstance(runner, str) else runner
        self._runner: RequestRunner | None = None

    def wait_ready(self, timeout_s: float) -> int:
        """1, at once."""
        return 1

    def close(self) -> None:
        """Forget the runner, its caches and stored values."""
        self._jobs.clear()
        self._values.clear()
        self._runner = None

    def _advance(self, timeout_s: float) -> None:
        """Run the next request; the timeout cannot interrupt it."""
        job = self._jobs.take()
        if job is not None:
            self._run(Slot(0), job)

    def _run(self, slot: Slot, job: Job) -> None:
        if self._runner is None:
            self._runner = self._factory(self._fetch)
        self._jobs.done(job, *answer(self._runner, job.request, "this process"))

    def _end(self, slot: Slot) -> None:
        """There is no worker to end."""

    def _fetch(self, handle: Handle) -> Any:
        if handle.key not in self._values:
            raise WorkerError(f"the handle {handle.key[:12]} was put into another pool")
        return self._values[handle.key]
