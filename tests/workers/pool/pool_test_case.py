"""The contract of WorkerPool; every pool's test class inherits it and supplies the pool."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_runner import Ask

from workers.errors import DatasetError, LostWorkerError
from workers.pool.protocol import Finished
from workers.pool.queued_pool import WorkerPool
from workers.user_code import UserCode, import_user_code

TIMEOUT_S = 600.0


def drain(pool: WorkerPool) -> dict[Any, Finished]:
    """Everything that is pending, by tag."""
    ended = {}
    stop = time.monotonic() + TIMEOUT_S
    while pool.pending:
        finished = pool.next_finished(timeout_s=5.0)
        if finished is not None:
            ended[finished.tag] = finished
        assert time.monotonic() < stop, "the pool did not finish"
    return ended


def asked(pool: WorkerPool, name: str) -> Any:
    """What the module of this name calls VALUE in a worker."""
    pool.submit(0, Ask("value of", name))
    finished = drain(pool)[0]
    if finished.error is not None:
        raise finished.error
    return finished.result


def new_name() -> str:
    """Of a module that no other test imports."""
    return f"mine_{uuid.uuid4().hex}"


class PoolTestCase:
    """What every pool does."""

    def test_every_request_comes_back_once_with_its_tag(self, pool: WorkerPool) -> None:
        for number in range(20):
            pool.submit(("trial", number), Ask("double", number))
        ended = drain(pool)
        assert {tag: f.result for tag, f in ended.items()} == {
            ("trial", n): 2 * n for n in range(20)
        }
        assert all(f.error is None and f.attempts == 1 for f in ended.values())

    def test_nothing_pending_means_none_at_once(self, pool: WorkerPool) -> None:
        assert pool.pending == 0
        assert pool.next_finished(timeout_s=None) is None

    def test_workers_start_without_a_request(self, pool: WorkerPool) -> None:
        assert pool.wait_ready(0.0) <= pool.num_workers
        assert 1 <= pool.wait_ready(TIMEOUT_S) <= pool.num_workers
        assert pool.pending == 0

    def test_a_request_that_fails_is_not_tried_again_and_keeps_its_message(
        self, pool: WorkerPool
    ) -> None:
        pool.submit("a", Ask("refuse"))
        (finished,) = drain(pool).values()
        assert isinstance(finished.error, DatasetError)
        assert (finished.error.what, finished.error.where, finished.error.fix) == (
            "no such thing",
            "here",
            "bring it",
        )
        assert finished.attempts == 1

    def test_a_foreign_exception_keeps_its_type_and_brings_its_trace(
        self, pool: WorkerPool
    ) -> None:
        pool.submit("a", Ask("bug"))
        (finished,) = drain(pool).values()
        assert isinstance(finished.error, ZeroDivisionError)
        assert "pool_runner.py" in "".join(finished.error.__notes__)

    def test_a_value_put_once_serves_many_requests(self, pool: WorkerPool) -> None:
        handle = pool.put(np.arange(1000, dtype=np.float64))
        again = pool.put(np.arange(1000, dtype=np.float64))
        assert handle.key == again.key
        for number in range(4):
            pool.submit(number, Ask("sum", large=handle))
        assert {f.result for f in drain(pool).values()} == {499500.0}

    def test_cancel_drops_queued_requests(self, pool: WorkerPool) -> None:
        for number in range(5):
            pool.submit(number, Ask("double", number))
        pool.cancel_all()
        assert pool.pending == 0
        pool.submit("later", Ask("double", 21))
        assert drain(pool)["later"].result == 42

    def test_close_may_be_called_twice_and_leaves_nothing_pending(self, pool: WorkerPool) -> None:
        pool.submit("a", Ask("double", 1))
        pool.close()
        pool.close()
        assert pool.next_finished(timeout_s=0.0) is None


class SeparateWorkersTestCase(PoolTestCase):
    """What pools with processes of their own do beside."""

    @pytest.fixture
    def open_with(self) -> Callable[[UserCode], WorkerPool]:
        """A pool of one worker that knows modules of the user."""
        raise NotImplementedError

    def test_a_worker_runs_the_bytes_of_the_driver_with_the_files_beside(
        self, open_with: Callable[[UserCode], WorkerPool], tmp_path: Path
    ) -> None:
        name = new_name()
        mine, beside = tmp_path / f"{name}.py", tmp_path / f"{name}_beside.py"
        mine.write_text(f"from {name}_beside import HALF\nVALUE = 2 * HALF\n")
        beside.write_text("HALF = 21\n")
        code = import_user_code([str(mine)])
        assert [source.name for source in code[0].sources] == [name, beside.stem]
        mine.write_text("VALUE = 0\n")
        beside.unlink()
        pool = open_with(code)
        try:
            assert asked(pool, name) == 42
        finally:
            pool.close()

    def test_two_workers_run_side_by_side(self, pool: WorkerPool, tmp_path: Path) -> None:
        for number in range(2):
            pool.submit(number, Ask("meet", 2, str(tmp_path)))
        drain(pool)
        assert len(list(tmp_path.iterdir())) == 2, "both ran in one process"

    def test_a_killed_worker_loses_nothing_but_an_attempt(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        pool.submit("victim", Ask("die", 1, str(tmp_path)))
        for number in range(6):
            pool.submit(number, Ask("double", number))
        ended = drain(pool)
        assert ended["victim"].attempts == 2
        assert ended["victim"].result == 1
        assert [ended[n].result for n in range(6)] == [0, 2, 4, 6, 8, 10]
        assert [ended[n].attempts for n in range(6)] == [1] * 6

    def test_kill_from_outside_is_noticed_and_the_request_runs_elsewhere(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        pool.submit("a", Ask("sleep once", 300.0, str(tmp_path)))
        stop = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.iterdir()):
            assert pool.next_finished(timeout_s=0.1) is None
            assert time.monotonic() < stop
        pid = int(next(tmp_path.iterdir()).name.removeprefix("running-"))
        os.kill(pid, signal.SIGKILL)
        finished = drain(pool)["a"]
        assert (finished.error, finished.result, finished.attempts) == (None, 300.0, 2)

    @pytest.mark.parametrize("do", ["crash", "abort"])
    def test_a_request_that_crashes_two_workers_ends_with_a_message(
        self, pool: WorkerPool, tmp_path: Path, do: str
    ) -> None:
        pool.submit("poison", Ask(do, 99, str(tmp_path)))
        pool.submit("sound", Ask("double", 4))
        ended = drain(pool)
        error = ended["poison"].error
        assert isinstance(error, LostWorkerError)
        assert "'poison'" in error.what
        assert "attempt 2" in error.what
        assert ended["poison"].attempts == 2
        assert len(list(tmp_path.iterdir())) == 2
        assert ended["sound"].result == 8

    def test_a_request_whose_workers_are_taken_away_is_run_as_often_as_it_takes(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        pool.submit("unlucky", Ask("die", 4, str(tmp_path)))
        pool.submit("other", Ask("double", 4))
        ended = drain(pool)
        assert (ended["unlucky"].error, ended["unlucky"].result) == (None, 4)
        assert ended["unlucky"].attempts == 5
        assert ended["other"].result == 8
        assert [loss.tag for loss in pool.take_losses()] == ["unlucky"] * 4

    def test_cancel_stops_running_requests(self, pool: WorkerPool, tmp_path: Path) -> None:
        pool.submit("long", Ask("sleep", 300.0, str(tmp_path)))
        stop = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.iterdir()):
            pool.next_finished(timeout_s=0.1)
            assert time.monotonic() < stop
        pool.cancel_all()
        pool.submit("short", Ask("double", 1))
        assert pytest.approx(drain(pool)["short"].result) == 2
