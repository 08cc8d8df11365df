"""WorkerPool: submit requests, take results as they finish, survive the loss of a worker."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from workers.messages import (
    CalibrationRequest,
    CalibrationResult,
    EvaluationRequest,
    EvaluationResult,
)

Request = CalibrationRequest | EvaluationRequest
Result = CalibrationResult | EvaluationResult


@dataclass(frozen=True, slots=True)
class Finished:
    """One request that ended: exactly one of ``result`` and ``error`` is set."""

    tag: Hashable
    result: Any = None
    error: Exception | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that died while it ran the request ``tag``: which, why, and the end of its log."""

    tag: Hashable
    where: str
    why: str
    log: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """What one worker may use.

    Attributes:
        cpus: cores, also the threads of its numeric libraries.
        memory_bytes: on Ray what is set aside for it, else the most it may allocate; None is any.
    """

    cpus: float = 1
    memory_bytes: int | None = None


class WorkerPool(Protocol):
    """Runs requests on workers, one at a time per worker.

    Requests of one group go to one worker while there are others to do, and are shared when there
    are not. A request whose worker dies is run again on another; when ``max_attempts`` workers died
    in its group it ends with a LostWorkerError. An exception in the request itself is not retried.
    """

    @property
    def num_workers(self) -> int:
        """Workers that run at the same time."""

    def wait_ready(self, timeout_s: float) -> int:
        """Workers that have started; waits for the first, at most ``timeout_s`` seconds.

        Raises:
            WorkerError: workers cannot be started, or run other code than this process.
        """

    def put(self, value: bytes | Any) -> Any:
        """Store a large value once for all workers; the handle may stand for it in a request."""

    def submit(
        self, tag: Hashable, request: Request, group: Hashable = None, lost: int = 0
    ) -> None:
        """Queue a request; ``tag`` comes back with its result.

        Args:
            group: requests that share preparation; None is a group of its own.
            lost: workers that died in this group before, in an earlier run.
        """

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """The next request that ended, or None after ``timeout_s`` seconds."""

    @property
    def pending(self) -> int:
        """Requests queued or running."""

    def take_losses(self) -> list[Loss]:
        """Workers that died since the last call."""

    def drop(self, tags: Collection[Hashable]) -> None:
        """Forget queued requests; those that run go on, and end as usual."""

    def give_back(self, finished: Iterable[Finished]) -> None:
        """Return results that belong to another caller; ``next_finished`` gives them again."""

    def cancel_all(self) -> None:
        """Drop queued requests and stop running ones."""

    def close(self) -> None:
        """Release every worker; idempotent."""


POOLS = ("ray", "process", "inline")
REQUEST_TIMEOUT_S = 3600.0
"""A request is a part of one evaluation: minutes at most, unless its worker hangs."""
