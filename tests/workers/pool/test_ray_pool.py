from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from pool_runner import Ask
from pool_test_case import SeparateWorkersTestCase, drain

from tests.processes import descendants
from workers.errors import WorkerError
from workers.pool.queued_pool import WorkerPool
from workers.pool.ray_pool import RayPool
from workers.user_code import UserCode

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RUNNER = "pool_runner:Runner"


FORKS: list[int] = []
"""Forks of this process that call handlers of libraries, such as that of OpenBLAS."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayPool]:
    """One local Ray for all tests of this file; their pools share it."""
    os.register_at_fork(before=lambda: FORKS.append(os.getpid()))
    pool = RayPool(2, runner=RUNNER)
    pool.submit(0, Ask("pid"))
    drain(pool)
    yield pool
    pool.close()


@pytest.fixture
def ray_address(cluster: RayPool) -> str:
    import ray

    # The first pool's actors hold the CPUs that the pools of the tests need.
    cluster.cancel_all()
    for actor in list(cluster._slots):
        cluster._end(actor)
    return str(ray.get_runtime_context().gcs_address)


class TestRayPool(SeparateWorkersTestCase):
    @pytest.fixture
    def pool(self, ray_address: str) -> Iterator[RayPool]:
        pool = RayPool(2, runner=RUNNER)
        yield pool
        pool.close()

    @pytest.fixture
    def open_with(self, ray_address: str) -> Callable[[UserCode], WorkerPool]:
        return lambda code: RayPool(1, runner=RUNNER, code=code)


def test_ray_is_started_by_another_process_than_the_one_that_computes(cluster: RayPool) -> None:
    assert FORKS == []


def test_a_pool_that_nobody_used_is_closed_at_once() -> None:
    pool = RayPool(2, address="127.0.0.1:9", runner=RUNNER)
    assert pool.pending == 0
    pool.close()


def test_more_workers_than_cpus_are_refused_with_a_sentence(ray_address: str) -> None:
    pool = RayPool(64, runner=RUNNER)

    def ask() -> None:
        pool.submit(0, Ask("pid"))  # tells already, where Ray answers at once
        drain(pool)

    try:
        with pytest.raises(WorkerError, match="64 workers need 64 CPUs, the Ray cluster has 2"):
            ask()
    finally:
        pool.close()


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """Addresses that the processes accept TCP connections at, as /proc/net spells them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                sockets[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                found.add(sockets.get(os.readlink(descriptor)))
    return {address for address in found if address is not None}


def test_a_cluster_of_this_machine_listens_on_loopback_only(cluster: RayPool) -> None:
    cluster.submit("again", Ask("pid"))
    drain(cluster)
    addresses = listening_addresses([os.getpid(), *descendants(os.getpid())])
    assert addresses, "Ray listens somewhere"
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses <= loopback
