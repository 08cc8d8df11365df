"""Waiting for workers and for a known set of requests, without waiting for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final

from qsearch.errors import SearchFailedError
from qsearch.progress import Progress
from workers.pool.protocol import Finished, WorkerPool

STARTING: Final = "starting workers"
"""Name of the phase that lasts until the first worker can work."""
_POLL_S: Final = 1.0


def await_workers(
    pool: WorkerPool, progress: Progress, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Wait for the first worker, so that no phase counts their start as its own time.

    Args:
        pool: whose workers are starting; nothing is said where one has started.
        progress: told how many of them have.
        stopped: whether to wait no longer.
    Raises:
        WorkerError: they cannot be started.
    """
    ready = pool.wait_ready(0.0)
    if ready:
        return
    progress.phase(STARTING, pool.num_workers)
    while not ready and not stopped():
        progress.advance(0)
        ready = pool.wait_ready(_POLL_S)
    # The others follow while the first one works: the phase is over all the same.
    progress.phase(STARTING, ready or pool.num_workers, ready)


def gather(pool: WorkerPool, tags: Iterable[Hashable]) -> Iterator[tuple[Hashable, Any]]:
    """Results of the requests with these tags, as they end; others' are given back.

    Raises:
        Exception: the first error of a request; those that wait are dropped.
        SearchFailedError: the pool is idle and a result is missing.
    """
    missing = set(tags)
    others: list[Finished] = []
    try:
        while missing:
            finished = pool.next_finished(timeout_s=_POLL_S)
            if finished is None:
                if pool.pending == 0:
                    raise SearchFailedError(
                        f"the pool lost {len(missing)} requests without an answer",
                        where=", ".join(sorted(map(str, missing))[:4]),
                        fix="run the same command again",
                    )
                continue
            if finished.tag not in missing:
                others.append(finished)
                continue
            if finished.error is not None:
                raise finished.error
            missing.discard(finished.tag)
            yield finished.tag, finished.result
    finally:
        pool.drop(missing)
        pool.give_back(others)
