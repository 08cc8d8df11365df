"""Users share a server: whatever is killed, every study ends with the rows it has undisturbed.

The server, its drivers and their workers are real processes; test_ray_nodes has the same on a
cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.server.connection import ServerError
from qsearch.server.tokens import Tokens
from qsearch.store.engine import open_reader
from qsearch.store.repository import Repository
from tests.e2e.holding import Hold
from tests.ports import own_port
from tests.processes import command_of, descendants

SETTINGS: dict[str, dict[str, Any]] = {
    "one": {"seed": 1, "sampler": "random"},
    "two": {"seed": 2, "sampler": "random"},
    "three": {"seed": 3},
}
OWNERS = {"one": "ann", "three": "bob"}
TRIALS, BATCH = 5, 2
Data = dict[str, Path]
TIMEOUT_S = 600.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, small: Data) -> dict[str, Any]:
    """Rows and module of each study, searched in this process."""
    found = {}
    for name in OWNERS:
        folder = tmp_path_factory.mktemp("undisturbed") / name
        asked: dict[str, Any] = {"pool": "inline", "out": folder, **SETTINGS[name]}
        qsearch.launch(**small, trials=TRIALS, batch=BATCH, **asked)
        found[name] = rows(f"sqlite:///{folder / 'study.db'}", name)
    return found


def rows(storage: str, name: str) -> list[Any]:
    """What must be the same however a study was run."""
    with closing(Repository(open_reader(storage))) as repository:
        return [
            (t.number, t.batch, t.params, t.state, t.outcome.score, t.outcome.outputs_sha256)
            for t in repository.trials_of(repository.study(name).id)
        ]


@dataclass
class Server:
    """``qsearch serve`` with three users; ``start`` again after a kill.

    Every driver stands still when it has stored a trial, until ``go`` lets it.
    """

    root: Path
    words: tuple[str, ...]
    storage: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    url: str = ""
    drivers: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Begin to serve, on the port that it had."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.hold.environment(1)}
        if self.storage is not None:
            environment["QSEARCH_STORAGE"] = self.storage
        port = self.url.rpartition(":")[2] or str(own_port())
        words = ["serve", str(self.root), "--port", port, *self.words]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qsearch", *words],
            stdout=subprocess.PIPE,
            stderr=(self.root / "server.log").open("ab"),
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.root / "server.log").read_text()
        self.url = line.split()[1].rstrip("/")

    @property
    def hold(self) -> Hold:
        """Where drivers are told to go on."""
        return Hold(self.root.with_name("held"))

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self, user: str) -> qsearch.Client:
        """Asks as this user."""
        return qsearch.Client(self.url, token=self.tokens[user])

    def rows(self, name: str) -> list[Any]:
        """The rows of a study."""
        return rows(self.storage or f"sqlite:///{self.root / 'studies' / name / 'study.db'}", name)

    def held(self, name: str) -> int:
        """The process of a study's driver, when it stands still; 0 before."""
        pid = self.pid(name)
        return pid if pid and self.hold.held(pid) else 0

    def pid(self, name: str) -> int:
        """The process of a study's driver; 0 before there is one."""
        url = self.storage or f"sqlite:///{self.root / 'queue.db'}"
        with closing(Repository(open_reader(url))) as repository:
            (job,) = repository.jobs((self.root / ".jobs" / "server").read_text(), name=name)
        if job.state != "running" or job.pid is None:
            return 0
        self.drivers.add(job.pid)
        return job.pid


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """``serving(storage, "--pool", "ray", …)``: a server with the users ann, bob, cat and eve."""
    servers: list[Server] = []

    def start(storage: str | None, *words: str) -> Server:
        server = Server(tmp_path / "served", words, storage)
        users = Tokens(server.root / "tokens.json")
        for name in ("ann", "bob"):
            server.tokens[name] = users.add(name, "submit")
        server.tokens["cat"] = users.add("cat", "submit", 1)
        server.tokens["eve"] = users.add("eve", "read")
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()
        for pid in server.drivers:
            if "qsearch.server.driver" in command_of(pid):
                for each in (*descendants(pid), pid):
                    os.kill(each, signal.SIGKILL)


def until(true: Callable[[], Any]) -> Any:
    """Wait for something, for as long as a test may take."""
    end = time.monotonic() + TIMEOUT_S
    while not (found := true()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return found


def submitted(client: qsearch.Client, small: Data, name: str, **more: Any) -> dict[str, Any]:
    asked = {"trials": TRIALS, "batch": BATCH, "workers": 1, **SETTINGS[name], **more}
    return client.submit(**small, study=name, **asked)


def end_equal(server: Server, undisturbed: dict[str, Any], folder: Path) -> None:
    """Every study ends with the rows and the proved module it has undisturbed."""
    for name, owner in OWNERS.items():
        client = server.client(owner)
        job = client.wait(name, timeout_s=TIMEOUT_S)
        assert (job["state"], job["exit_code"]) == ("done", 0), job["error"]
        assert server.rows(name) == undisturbed[name]
        assert client.download(name, folder / f"{name}.qmod").proved
        assert [row["number"] for row in client.trials(name)] == list(range(TRIALS))
        status = client.status(name)
        assert client.best(name)["number"] == status["best"]["number"]
        assert status["model"] == "small.onnx"
        kinds = [event["kind"] for event in client.events(name)]
        assert kinds.count("complete") == 1


def kill_server(server: Server, study: str) -> None:
    """kill -9 in the middle; the study's driver goes on, and the next server finds it."""
    driver = until(lambda: server.held(study))
    attempts = server.client("eve").job(study)["attempts"]
    server.kill()
    server.start()
    assert server.pid(study) == driver
    assert server.client("eve").job(study)["attempts"] == attempts
    server.hold.go(driver)


def kill_driver(server: Server, study: str) -> None:
    """kill -9; another driver goes on, and stands still in its turn."""
    driver = until(lambda: server.held(study))
    os.kill(driver, signal.SIGKILL)
    until(lambda: server.client("eve").job(study)["attempts"] == 1)


def kill_worker(server: Server, study: str) -> None:
    """kill -9; another worker runs its trial. The driver stands still as before."""
    driver = until(lambda: server.held(study))
    workers = [pid for pid in descendants(driver) if "process_worker" in command_of(pid)]
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_kills_lose_nothing_on_sqlite(
    serving: Callable[..., Server], undisturbed: dict[str, Any], small: Data, tmp_path: Path
) -> None:
    server = serving(None)
    ann, bob = server.client("ann"), server.client("bob")
    assert submitted(ann, small, "one")["owner"] == "ann"
    assert submitted(ann, small, "two")["position"] in (1, 2)
    submitted(bob, small, "three")
    assert [job["name"] for job in bob.queue() if job["position"]][-1] == "two"
    # Equal files are sent once by a user.
    assert sorted(each["kind"] for each in ann.uploads()) == ["npz", "npz", "onnx"]
    refusals(server, small)
    ann.cancel("two")
    kill_worker(server, "one")
    kill_server(server, "one")
    kill_driver(server, "three")
    server.hold.go(until(lambda: server.held("three")))
    end_equal(server, undisturbed, tmp_path)


def refusals(server: Server, small: Data) -> None:
    """A reader submits nothing, a stranger sees nothing, and nobody has too many studies."""
    eve, cat = server.client("eve"), server.client("cat")
    with pytest.raises(ServerError, match="may read, and submit nothing"):
        submitted(eve, small, "one")
    for change in (lambda: eve.upload(small["model"]), lambda: eve.cancel("one")):
        with pytest.raises(ServerError, match="may read, and change nothing") as refused:
            change()
        assert refused.value.status == 403
    with pytest.raises(ServerError, match="is ann's"):
        server.client("bob").cancel("one")
    cat.submit("digits", study="cats")
    with pytest.raises(ServerError, match="1 are the most") as refused:
        cat.submit("digits", study="more")
    assert refused.value.status == 429
    cat.cancel("cats")
    with pytest.raises(ServerError, match="token is wrong") as refused:
        qsearch.Client(server.url, token="qs_wrong").queue()
    assert refused.value.status == 401
    assert {job["name"] for job in eve.queue()} == {"one", "two", "three", "cats"}
