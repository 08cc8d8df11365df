"""The services of deploy/compose.yaml started as plain processes on one machine, and a search.

    python -m tests.deploy.compose_by_hand --model m.onnx [--calib calib/] [--eval dev/]
                                           [--preprocess pre.yaml] [--trials 8] [--kill-after 2]

Every command line, environment, volume, health check and restart policy is read from the file; as
root each service lives in namespaces of its own (see ``containers``). A worker is killed meanwhile.
Prints a JSON object and fails unless the worker was replaced, the study completed, and the
dashboard says what the store says.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qsearch.errors import StoreError
from qsearch.store.engine import open_reader
from qsearch.store.repository import Repository
from tests.deploy.compose_file import Service, image_environment, services
from tests.deploy.containers import Container, Machine, postgres_user, wait_until

HEALTHY_S = 600.0
ACTOR = "ray::_RayWorker"


class Stack:
    """All services; a thread starts those again that die, as the restart policy says."""

    def __init__(self, machine: Machine, variables: Mapping[str, str]) -> None:
        self.machine = machine
        self.services = services(variables)
        self.containers = {
            name: Container(name, service.name)
            for service in self.services.values()
            for name in _names(service)
        }
        self._ended: dict[str, int] = {}
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> Stack:
        for name in self.containers:
            self.machine.address(name)
        self.machine.name_everyone()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._watch.ident is not None:
            self._watch.join(240)

    def up(self) -> None:
        """Start all, each when what it needs is healthy."""
        for service in self.services.values():
            for needed in service.needs:
                self._wait_healthy(self.services[needed])
            for name in _names(service):
                self._start(self.containers[name])
        self._watch.start()
        self._wait_healthy(self.services["dashboard"])

    def exit_code(self, name: str) -> int | None:
        """How a service ended for good; None while it runs."""
        return self._ended.get(name)

    def log(self, name: str, lines: int = 20) -> str:
        """The end of what a container printed."""
        text = (self.machine.root / "log" / name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def run(self, name: str, words: Sequence[str], **more: str) -> Any:
        """A command beside a container, with its environment."""
        service = self.services[self.containers[name].service]
        return self.machine.run(name, words, image_environment() | service.environment | more)

    def _start(self, container: Container) -> None:
        service = self.services[container.service]
        words, user, environment = service.words, None, dict(service.environment)
        if container.service == "postgres":
            words, user = self._database(service), postgres_user()
        else:
            environment = image_environment() | environment
        self.machine.start(
            container, words, environment, service.mounts, service.shm_size, user=user
        )

    def _database(self, service: Service) -> tuple[str, ...]:
        """What the entry point of the image does: make the database at the first start."""
        data = self.machine.root / "data"
        if not data.exists():
            data.mkdir(mode=0o700)
            user = postgres_user()
            if user is not None:
                shutil.chown(data, int(user))
        told = service.environment
        make = (
            f"[ -f {data}/PG_VERSION ] || {{ printenv POSTGRES_PASSWORD >{data}.pw && "
            f"initdb -N -E UTF8 -A scram-sha-256 -U {told['POSTGRES_USER']} "
            f"--pwfile {data}.pw {data} && "
            f"printf 'host all all all scram-sha-256\\n' >>{data}/pg_hba.conf && "
            f"echo 'CREATE DATABASE {told['POSTGRES_DB']}' "
            f"| postgres --single -D {data} template1; }}"
        )
        pw = Path(f"{data}.pw")
        pw.touch(mode=0o600)
        if postgres_user() is not None:
            shutil.chown(pw, int(postgres_user() or 0))
        serve = (
            f"exec postgres -D {data} -h 0.0.0.0 -p {self.machine.ports['postgres']} "
            f"-k {self.machine.root}/tmp/postgres"
        )
        return ("sh", "-c", f"{make} && {serve}")

    def _wait_healthy(self, service: Service) -> None:
        def healthy() -> bool:
            done = self.run(service.name, service.probe)
            return bool(done.returncode == 0)

        try:
            wait_until(f"{service.name} is healthy", healthy, HEALTHY_S)
        except AssertionError as error:
            error.add_note(self.log(service.name))
            raise

    def _supervise(self) -> None:
        while not self._stop.wait(0.2):
            for name, container in self.containers.items():
                if name in self._ended or container.process is None or container.alive:
                    continue
                code = container.process.wait()
                policy, _, most = self.services[container.service].restart.partition(":")
                if policy == "on-failure" and code == 0:
                    self._ended[name] = code
                elif container.starts > int(most or 5):
                    self._ended[name] = code or 1
                else:
                    self.machine.kill(container)
                    self._start(container)


def _names(service: Service) -> list[str]:
    if service.replicas == 1:
        return [service.name]
    return [f"{service.name}-{number + 1}" for number in range(service.replicas)]


def folders(machine: Machine, options: argparse.Namespace) -> dict[str, str]:
    """deploy/.env: secrets made now, the model and data where compose mounts them."""
    models = machine.root / "given"
    models.mkdir()
    flags = ["--trials", str(options.trials)]
    told = {"MODELS_DIR": str(models), "STUDY": "search", "LAUNCH_FLAGS": ""}
    shutil.copyfile(options.model, models / "m.onnx")
    told["MODEL"] = "m.onnx"
    if options.preprocess:
        shutil.copyfile(options.preprocess, models / "pre.yaml")
        flags += ["--preprocess", "/models/pre.yaml"]
    told["CALIB_DIR"] = str(Path(options.calib).absolute())
    told["EVAL_DIR"] = str(Path(options.eval).absolute())
    told["LAUNCH_FLAGS"] = " ".join(flags)
    for name in ("POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "QSEARCH_TOKEN"):
        told[name] = secrets.token_hex(24)
    return told


def storage_seen_from_here(stack: Stack) -> str:
    """The workers' storage, by address: this process has no service names."""
    url = stack.services["job"].environment["QSEARCH_STORAGE"]
    here = f"{stack.machine.address('postgres')}:{stack.machine.ports['postgres']}"
    return url.replace("postgres:5432", here)


def asked(stack: Stack, path: str, token: str | None) -> tuple[int, Any]:
    """Status and JSON of a request to the dashboard."""
    address = f"{stack.machine.address('dashboard')}:{stack.machine.ports['dashboard']}"
    request = urllib.request.Request(f"http://{address}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, None


def search(stack: Stack, token: str, trials: int, kill_after: int, limit_s: float) -> Any:
    """Wait for the study, kill a worker in between, and look at what is left."""
    begin = time.monotonic()
    story: dict[str, float] = {}
    worker = stack.containers["worker-1"]
    url = storage_seen_from_here(stack)

    def finished() -> int:
        try:
            reader = Repository(open_reader(url))
        except StoreError:
            return 0
        try:
            study = reader.find_study("search")
            return 0 if study is None else reader.count_trials(study.id).finished
        finally:
            reader.close()

    def runs(container: Container, program: str) -> bool:
        return any(program in command for command in container.commands())

    def ended() -> bool:
        return stack.exit_code("job") is not None

    def moved(count: int) -> bool:
        assert stack.exit_code("job") is None, stack.log("job")
        return finished() >= count

    wait_until("the first trials", lambda: moved(kill_after), limit_s)
    assert runs(worker, ACTOR), worker.commands()
    story["trials_before_the_kill"] = finished()
    stack.machine.kill(worker)
    killed = time.monotonic()
    wait_until("the worker is replaced", lambda: worker.starts > 1 and runs(worker, "raylet"), 600)
    story["replaced_after_s"] = round(time.monotonic() - killed, 1)
    wait_until("the new worker works", lambda: runs(worker, ACTOR) or ended(), limit_s)
    if not ended():
        story["at_work_again_after_s"] = round(time.monotonic() - killed, 1)
    wait_until("the job ends", ended, limit_s)
    assert stack.exit_code("job") == 0, stack.log("job", 60)
    assert finished() == trials, finished()
    status, page = asked(stack, "/api/v1/studies", token)
    refused, _ = asked(stack, "/api/v1/studies", None)
    assert (status, refused) == (200, 401), (status, refused)
    reader = Repository(open_reader(url))
    study = reader.study("search")
    attempts = [trial.outcome.attempts for trial in reader.trials_of(study.id)]
    states = sorted({trial.state for trial in reader.trials_of(study.id)})
    reader.close()
    assert "search" in json.dumps(page)
    return {
        **story,
        "trials": len(attempts),
        "states": states,
        "most_attempts": max(attempts),
        "starts": {name: c.starts for name, c in stack.containers.items()},
        "search_s": round(time.monotonic() - begin, 1),
    }


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Do it; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--calib", required=True)
    parser.add_argument("--eval", required=True)
    parser.add_argument("--preprocess")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--kill-after", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the search")
    options = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin = time.monotonic()
    with Machine() as machine:
        told = folders(machine, options)
        with Stack(machine, told) as stack:
            stack.up()
            started = time.monotonic() - begin
            found = search(
                stack, told["QSEARCH_TOKEN"], options.trials, options.kill_after, options.limit
            )
            found["namespaces"] = machine.namespaces
            found["services_up_s"] = round(started, 1)
            found["job_said"] = stack.log("job", 8)
    print(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
