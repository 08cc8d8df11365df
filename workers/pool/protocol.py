"""WorkerPool: submit requests, take results as they finish, survive the loss of a worker."""

from __future__ import annotations

from collections.abc import Hashable
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


class WorkerPool(Protocol):
    """Runs requests on workers, one at a time per worker, in order of submission.

    A request whose worker dies is run again on another, up to ``max_attempts``; then it ends with a
    LostWorkerError. An exception in the request itself is not retried.
    """

    @property
    def num_workers(self) -> int:
        """Workers that run at the same time."""

    def put(self, value: bytes | Any) -> Any:
        """Store a large value once for all workers; the handle may stand for it in a request."""

    def submit(self, tag: Hashable, request: Request) -> None:
        """Queue a request; ``tag`` comes back with its result."""

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """The next request that ended, or None after ``timeout_s`` seconds."""

    @property
    def pending(self) -> int:
        """Requests queued or running."""

    def cancel_all(self) -> None:
        """Drop queued requests and stop running ones."""

    def close(self) -> None:
        """Release every worker; idempotent."""
