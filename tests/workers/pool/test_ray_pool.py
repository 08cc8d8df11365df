from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pool_runner import Ask
from pool_test_case import SeparateWorkersTestCase, drain

from workers.errors import WorkerError
from workers.pool.queued_pool import WorkerPool
from workers.pool.ray_pool import RayPool
from workers.user_code import UserCode

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

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


CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from pool_runner import Ask
from workers.pool.queued_pool import WorkerPool
from workers.pool.ray_pool import RayPool
from workers.user_code import UserCode
pool = RayPool(1, address=sys.argv[1], runner="pool_runner:Runner", start_timeout_s=300)
pool.submit(0, Ask("double", 21))
finished = None
while finished is None:
    finished = pool.next_finished(timeout_s=10)
print("answer", finished.result)
pool.close()
"""


def start_client(address: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, str(HERE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )


HEAD = """
import os, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
input()
"""


@pytest.fixture
def open_cluster() -> Iterator[str]:
    """The address of a cluster that other machines may join: such a one is not ours."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT) + os.pathsep + str(HERE)},
    )
    assert head.stdout is not None
    yield next(line.strip() for line in head.stdout if ":" in line)
    head.communicate("end\n", timeout=600)


def test_a_second_process_connects_with_the_token_and_none_without(
    open_cluster: str, tmp_path: Path
) -> None:
    ray_address = open_cluster
    friend = start_client(ray_address, dict(os.environ))
    # Strangers: another home without ~/.ray/auth_token; no token, a wrong one, or no
    # authentication at all.
    outside = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    outside["HOME"] = str(tmp_path)
    strangers = [
        start_client(ray_address, outside | more)
        for more in (
            {},
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
            {"RAY_AUTH_MODE": "disabled"},
        )
    ]
    stdout, stderr = friend.communicate(timeout=600)
    assert "answer 42" in stdout, stderr
    for stranger in strangers:
        stdout, stderr = stranger.communicate(timeout=600)
        assert stranger.returncode != 0
        assert "answer" not in stdout
        assert "cannot connect to Ray" in stderr


def listening_addresses(pids: set[int]) -> set[str]:
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


def descendants(root: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def test_a_cluster_of_this_machine_listens_on_loopback_only(cluster: RayPool) -> None:
    cluster.submit("again", Ask("pid"))
    drain(cluster)
    addresses = listening_addresses(descendants(os.getpid()))
    assert addresses, "Ray listens somewhere"
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses <= loopback


def test_an_address_where_nobody_listens_gives_a_message_in_time() -> None:
    program = CLIENT.replace("start_timeout_s=300", "start_timeout_s=4")
    done = subprocess.run(
        [sys.executable, "-c", program, "127.0.0.1:9", str(HERE)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode != 0
    assert "WorkerError" in done.stderr
    assert "127.0.0.1:9" in done.stderr
