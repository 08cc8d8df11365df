"""Types of pools: results, losses, sizes of workers, kinds."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


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
    """Resources of one worker.

    Attributes:
        cpus: cores, also the threads of its numeric libraries.
        memory_bytes: on Ray what is set aside for it, else the most it may allocate; None is any.
    """

    cpus: float = 1
    memory_bytes: int | None = None
