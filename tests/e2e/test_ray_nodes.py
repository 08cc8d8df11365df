"""A Ray cluster of two nodes that runs already: who may join it, shares it, and survives a node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.test_server import (
    Server,
    end_equal,
    kill_driver,
    kill_server,
    kill_worker,
    serving,
    submitted,
    undisturbed,
    until,
)

__all__ = ["serving", "undisturbed"]  # fixtures

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HERE = Path(__file__).parent
RUNNERS = HERE.parent / "workers" / "pool"
MODE = """
import numpy as np
from compiler.quantize.scales.modes import calibrate_modes
from beside import SHARE

calibrate_modes.register("nearly_all")(lambda stats, qconfig, nbit: SHARE * stats.largest)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Two nodes of one CPU each, which know our packages and nothing of the user's.

    Tests replace one of them.
    """
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "ray_nodes.py"), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("cluster"),
        env={**environment, "PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{RUNNERS}"},
    )
    yield process
    process.communicate(timeout=600)


@pytest.fixture(scope="module")
def address(cluster: subprocess.Popen[str]) -> str:
    return address_of(cluster)


CLIENT = """
import sys
import time
sys.path.insert(0, sys.argv[2])
from pool_runner import Ask
from workers.pool.ray_pool import RayPool
pool = RayPool(2, address=sys.argv[1], runner="pool_runner:Runner", start_timeout_s=300)

def work():
    for number in range(2):
        pool.submit(number, Ask("sleep", 0.5, sys.argv[3]))
    while pool.pending:
        pool.next_finished(5.0)

def ready(count):
    end = time.monotonic() + 400
    while sum(slot.ready for slot in pool._slots) != count:
        assert time.monotonic() < end, "workers do not come"
        work()

print("started", pool.wait_ready(400), flush=True)
ready(2)
pool._start_timeout_s, may_take = 3, pool._start_timeout_s
print("two workers", flush=True)
input()
ready(1)
begin = time.monotonic()
while time.monotonic() < begin + 5:  # longer than a worker may take to start
    work()
pool._start_timeout_s = may_take
print("one worker goes on", flush=True)
input()
ready(2)
print("two workers again", flush=True)
pool.close()
"""


SHARING = """
import sys
import threading
sys.path.insert(0, sys.argv[2])
from pool_runner import Ask
from workers.pool.ray_pool import RayPool
pool = RayPool(2, address=sys.argv[1], runner="pool_runner:Runner")
ended, told = threading.Event(), 0
threading.Thread(target=lambda: (input(), ended.set()), daemon=True).start()
while not ended.is_set():
    for number in range(6):
        pool.submit(number, Ask("sleep", 0.3, sys.argv[3]))
    while pool.pending:
        pool.next_finished(1.0)
        ready = sum(slot.ready for slot in pool._slots)
        if ready != told and len(pool._slots) == ready:
            told = ready
            print(told, "workers", flush=True)
pool.close()
"""


JOINING = """
import sys
sys.path.insert(0, sys.argv[2])
from pool_runner import Ask
from workers.pool.ray_pool import RayPool
pool = RayPool(1, address=sys.argv[1], runner="pool_runner:Runner", start_timeout_s=300)
pool.submit(0, Ask("double", 21))
finished = None
while finished is None:
    finished = pool.next_finished(timeout_s=10)
print("answer", finished.result)
pool.close()
"""


def test_a_process_joins_with_the_token_and_none_without(address: str, tmp_path: Path) -> None:
    friend = client_of(address, JOINING, tmp_path, stderr=subprocess.PIPE)
    # Strangers: another home without ~/.ray/auth_token; no token, a wrong one, or no
    # authentication at all.
    outside = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    outside["HOME"] = str(tmp_path)
    strangers = [
        client_of(address, JOINING, tmp_path, outside | more, subprocess.PIPE)
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


def test_an_address_where_nobody_listens_gives_a_message_in_time(tmp_path: Path) -> None:
    program = JOINING.replace("start_timeout_s=300", "start_timeout_s=4")
    alone = client_of("127.0.0.1:9", program, tmp_path, stderr=subprocess.PIPE)
    _, stderr = alone.communicate(timeout=600)
    assert alone.returncode != 0
    assert "WorkerError" in stderr
    assert "127.0.0.1:9" in stderr


def test_two_searches_share_a_cluster_and_the_last_one_gets_it_all(
    address: str, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    clients = []
    try:
        for name in ("a", "b"):
            clients.append(client_of(address, SHARING, tmp_path / name))
            assert heard(clients[-1], "2 workers" if name == "a" else "1 workers")
        assert heard(clients[0], "1 workers")
        clients[1].communicate("\n", timeout=600)
        assert heard(clients[0], "2 workers")
        clients[0].communicate("\n", timeout=600)
    finally:
        for client in clients:
            client.kill()


def test_two_nodes_give_the_rows_of_a_search_without_ray(
    address: str, launch: Callable[..., Launch], tmp_path: Path
) -> None:
    mine = tmp_path / "users" / "nearly.py"
    mine.parent.mkdir()
    mine.write_text(MODE)
    (mine.parent / "beside.py").write_text("import numpy\nSHARE = numpy.float32(0.9)\n")
    space = tmp_path / "space.yaml"
    space.write_text(
        "fields: {calibrate_mode: [nearly_all, mse, max], weight_granularity: [channel, tensor]}\n"
    )
    words = ("--trials", "6", "--import", str(mine), "--space", str(space), "--max-drop", "1")
    alone = launch("alone", *words, "--pool", "inline", "--batch", "4")
    alone.finish()
    ray = ("--address", address, "--pool", "ray", "--workers", "2", "--batch", "4")
    nodes = launch("nodes", *words, *ray)
    nodes.finish()
    assert {trial.params["calibrate_mode"] for trial in nodes.trials()} >= {"nearly_all"}
    assert nodes.story() == alone.story()
    ours, theirs = (run.folder / "best.qmod" for run in (nodes, alone))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.postgres
def test_a_server_with_drivers_on_ray_and_here_loses_nothing_on_postgres(
    serving: Callable[..., Server],
    undisturbed: dict[str, Any],
    small: dict[str, Path],
    postgres_url: str,
    cluster: subprocess.Popen[str],
    address: str,
    tmp_path: Path,
) -> None:
    words = ("--pool", "process", "--pool", "ray", "--address", address, "--workers", "2")
    server = serving(postgres_url, *words)
    ann, bob = server.client("ann"), server.client("bob")
    submitted(ann, small, "one", pool="ray", workers=2)
    submitted(bob, small, "three")
    driver = until(lambda: server.held("one"))
    told(cluster, "kill")
    told(cluster, "add")
    server.hold.go(driver)  # the other study waits for its workers
    kill_driver(server, "three")
    kill_worker(server, "three")
    kill_server(server, "three")
    end_equal(server, undisturbed, tmp_path)


def test_a_node_that_dies_leaves_the_rest_at_work_and_a_new_one_is_used(
    cluster: subprocess.Popen[str], address: str, tmp_path: Path
) -> None:
    client = client_of(address, CLIENT, tmp_path)
    try:
        assert heard(client, "two workers")
        told(cluster, "kill")
        told(client, "", answer="one worker goes on")
        told(cluster, "add")
        told(client, "", answer="two workers again")
        assert client.wait(timeout=600) == 0
    finally:
        client.kill()


def client_of(
    address: str,
    program: str,
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    stderr: int | None = None,
) -> subprocess.Popen[str]:
    """A process that uses the cluster."""
    return subprocess.Popen(
        [sys.executable, "-c", program, address, str(RUNNERS), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**environment, "PYTHONPATH": str(HERE.parents[1])},
    )


def address_of(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return next(line.strip() for line in cluster.stdout if ":" in line)


def heard(process: subprocess.Popen[str], answer: str) -> bool:
    """Wait until a process says so."""
    assert process.stdout is not None
    return any(line.strip() == answer for line in process.stdout)


def told(process: subprocess.Popen[str], word: str, answer: str = "done") -> None:
    """Say a word to a process, and wait for its answer."""
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    assert heard(process, answer)
