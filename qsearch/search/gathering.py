"""Waiting for a known set of requests, without waiting for ever."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

from qsearch.errors import SearchFailedError
from workers.pool.protocol import Finished, WorkerPool

_POLL_S: Final = 1.0


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
