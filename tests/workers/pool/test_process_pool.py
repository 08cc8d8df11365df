from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pool_runner import Ask
from pool_test_case import SeparateWorkersTestCase, asked, drain, new_name

from workers.errors import LostWorkerError, UserCodeError, WorkerError
from workers.pool import process_pool, queued_pool
from workers.pool.process_pool import ProcessPool
from workers.pool.protocol import Finished, WorkerSize
from workers.pool.queued_pool import WorkerPool
from workers.user_code import UserCode, import_user_code

HERE = Path(__file__).parent


class TestProcessPool(SeparateWorkersTestCase):
    @pytest.fixture
    def pool(self) -> Iterator[ProcessPool]:
        pool = ProcessPool(2, runner="pool_runner:Runner")
        yield pool
        pool.close()

    @pytest.fixture
    def open_with(self) -> Callable[[UserCode], WorkerPool]:
        return lambda code: ProcessPool(1, runner="pool_runner:Runner", code=code)


def pids(pool: ProcessPool) -> list[int]:
    return [slot.popen.pid for slot in pool._slots]


def test_processes_start_with_the_first_use_of_the_pool() -> None:
    pool = ProcessPool(2, runner="pool_runner:Runner")
    try:
        assert pids(pool) == []
        pool.wait_ready(0.0)
        assert len(pids(pool)) == 2
    finally:
        pool.close()


def test_a_package_of_the_user_travels_with_its_own_modules_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name()
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "__init__.py").write_text("")
    (folder / "ops.py").write_text("import numpy\nfrom . import table\nVALUE = table.SEVEN\n")
    (folder / "table.py").write_text("SEVEN = 7\n")
    (folder / "unused.py").write_text("raise RuntimeError\n")
    code = import_user_code([f"{name}.ops"])
    sent = {source.name for source in code[0].sources}
    assert sent == {name, f"{name}.ops", f"{name}.table"}
    for path in folder.glob("*.py"):
        path.unlink()
    pool = ProcessPool(1, runner="pool_runner:Runner", code=code)
    try:
        assert asked(pool, f"{name}.ops") == 7
    finally:
        pool.close()


def test_a_module_that_fails_in_the_worker_is_the_error_of_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / f"{new_name()}.py"
    mine.write_text("import os\nVALUE = os.environ['ONLY_IN_THE_DRIVER']\n")
    monkeypatch.setenv("ONLY_IN_THE_DRIVER", "1")
    code = import_user_code([str(mine)])
    monkeypatch.delenv("ONLY_IN_THE_DRIVER")
    pool = ProcessPool(1, runner="pool_runner:Runner", code=code)
    try:
        with pytest.raises(UserCodeError, match="KeyError: 'ONLY_IN_THE_DRIVER'") as caught:
            asked(pool, mine.stem)
    finally:
        pool.close()
    assert f"{mine}, line 2: VALUE = os.environ" in str(caught.value.where)
    assert "in a worker" in caught.value.notes[0]


def test_a_worker_that_takes_too_long_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def now() -> float:
        return time.monotonic() + 1000.0 * attempts

    for module in (process_pool, queued_pool):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=now))
    pool = ProcessPool(1, max_attempts=2, request_timeout_s=600.0, runner="pool_runner:Runner")
    ended: dict[Any, Finished] = {}
    try:
        pool.submit("slow", Ask("sleep", 600.0, str(tmp_path)))
        pool.submit("next", Ask("double", 3))
        while pool.pending:
            finished = pool.next_finished(timeout_s=0.1)
            if finished is not None:
                ended[finished.tag] = finished
            # Each time that a worker has begun to sleep, a thousand seconds pass.
            attempts = len(list(tmp_path.iterdir()))
        assert isinstance(ended["slow"].error, LostWorkerError)
        assert "no answer within 600.0 s" in ended["slow"].error.what
        assert ended["slow"].attempts == 2
        assert ended["next"].result == 6
    finally:
        pool.close()


@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_that_ends_by_itself_is_told_with_its_exit_code(code: int) -> None:
    pool = ProcessPool(1, max_attempts=1, runner="pool_runner:Runner")
    try:
        pool.submit("ends", Ask("end", code))
        error = drain(pool)["ends"].error
    finally:
        pool.close()
    assert isinstance(error, LostWorkerError)
    assert f"exit code {code}" in str(error)


@pytest.mark.parametrize(
    ("cpus", "given", "threads"), [(1, None, "1"), (3, None, "3"), (0.5, None, "1"), (3, "7", "7")]
)
def test_a_worker_has_as_many_threads_as_cores_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, cpus: float, given: str | None, threads: str
) -> None:
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
        if given is not None:
            monkeypatch.setenv(variable, given)
    pool = ProcessPool(1, runner="pool_runner:Runner", size=WorkerSize(cpus=cpus))
    try:
        for variable in variables:
            pool.submit(variable, Ask("environment", variable))
        assert [drained.result for drained in drain(pool).values()] == [threads] * 3
    finally:
        pool.close()


def test_a_pool_that_waits_sleeps_until_there_is_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def counted(pipes: list[Any], timeout_s: float | None) -> Any:
        waits.append(timeout_s)
        return wait(pipes, timeout_s)

    pool = ProcessPool(1, runner="pool_runner:Runner")
    try:
        pool.wait_ready(600.0)
        pool.submit("slow", Ask("sleep", 60.0, str(tmp_path)))
        monkeypatch.setattr(process_pool, "wait", counted)
        assert pool.next_finished(timeout_s=0.5) is None
        assert 1 <= len(waits) < 10
    finally:
        pool.close()


def test_workers_that_cannot_start_are_reported_not_restarted_for_ever() -> None:
    pool = ProcessPool(1, runner="no_such_module:Runner")
    try:
        pool.submit("a", Ask("double", 1))
        with pytest.raises(WorkerError, match="in a row did not start: exit code 1"):
            drain(pool)
    finally:
        pool.close()


def test_workers_killed_at_their_start_end_no_search_while_another_works() -> None:
    pool = ProcessPool(2, runner="pool_runner:Runner")
    try:
        pool.submit("first", Ask("pid"))
        works = drain(pool)["first"].result
        for number in range(8):
            (starting,) = set(pids(pool)) - {works}
            os.kill(starting, signal.SIGKILL)
            while True:
                pool.submit(number, Ask("double", number))
                assert drain(pool)[number].result == 2 * number
                if starting not in pids(pool):
                    break
    finally:
        pool.close()


@pytest.mark.slow
def test_workers_end_soon_after_a_driver_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pool_runner import Ask\n"
        "from workers.pool.process_pool import ProcessPool\n"
        "pool = ProcessPool(2, runner='pool_runner:Runner')\n"
        "pool.submit(0, Ask('sleep', 600.0, sys.argv[2])); pool.submit(1, Ask('pid'))\n"
        "pool.next_finished()\n"
        "print(*(slot.popen.pid for slot in pool._slots), flush=True); time.sleep(600)\n"
    )
    root = HERE.parents[2]
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(HERE), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        driver.kill()
        driver.wait()
    stop = time.monotonic() + 600
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < stop, "a worker outlived its driver"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
