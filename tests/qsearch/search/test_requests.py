"""What is said while workers start, and results that never come."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from qsearch.errors import SearchFailedError
from qsearch.run.progress import PlainProgress
from qsearch.search.running_trials import await_workers, run_requests
from workers.pool.queued_pool import InlinePool


class StartingPool(InlinePool):
    """Four workers; ``ready`` says how many have started each time, 3 s after the last."""

    def __init__(self, ready: list[int], now: list[float]) -> None:
        super().__init__()
        self._ready: Iterator[int] = iter(ready)
        self._now = now

    @property
    def num_workers(self) -> int:
        return 4

    def wait_ready(self, timeout_s: float) -> int:
        self._now[0] += 3 if timeout_s else 0
        return next(self._ready)


def told(ready: list[int], **options: Any) -> list[str]:
    """The lines until a phase of 2 steps is over, which takes a second."""
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress(out, every_s=5, clock=lambda: now[0])
    await_workers(StartingPool(ready, now), progress, **options)
    progress.phase("calibration", 2)
    now[0] += 1
    progress.advance(2)
    return out.getvalue().splitlines()


def test_the_time_of_calibration_excludes_the_start_of_workers() -> None:
    assert told([0, 0, 0, 0, 0, 1]) == [
        "starting workers: 0/4",
        "starting workers: 0/4, 6 s",
        "starting workers: 0/4, 12 s",
        "calibration: 0/2",
        "calibration: 2/2, 1 s",
    ]


@pytest.mark.parametrize("ready", [1, 4])
def test_workers_that_have_started_are_not_mentioned(ready: int) -> None:
    assert told([ready]) == ["calibration: 0/2", "calibration: 2/2, 1 s"]


def test_a_stopped_search_does_not_wait_for_workers() -> None:
    assert told([0], stopped=lambda: True)[0] == "starting workers: 0/4"


class ForgetfulPool(InlinePool):
    """It has nothing to do; the third question is one too many."""

    asked = 0

    def submit(self, *_: object) -> None:
        """The request is lost."""

    def next_finished(self, timeout_s: float | None = None) -> None:
        self.asked += 1
        assert self.asked < 3


def test_an_idle_pool_with_missing_results_is_an_error() -> None:
    with pytest.raises(SearchFailedError, match="lost 2 requests"):
        run_requests(ForgetfulPool(), ["a", "b"], "x", print)
