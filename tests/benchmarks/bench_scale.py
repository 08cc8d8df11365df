"""What the service costs: drivers, store, sampler, queue and pool with pretended evaluations.

    python -m tests.benchmarks.bench_scale [--workers 10,100,1000] [--studies 100] [--trials 10000]
                                           [--storage sqlite,postgres] [--sampler random]
                                           [--wanted 1,4,16,64]
    python -m tests.benchmarks.bench_scale --ray 4 --workers 1,16,64 --trials 1280

Prints a JSON object per storage and number of workers. ``--trials`` are those of all studies.
``--wanted`` are the workers that studies ask for, in turn.

Without ``--ray`` time is simulated, so that 1,000 workers need no 1,000 processes: the queue of a
server starts the studies of several users, real drivers run them on a store, and their pools share
one cluster as pools on Ray do. CPU time of a driver passes on the clock of the simulation, as if
each driver had a core. Wanted: at most 2 ms of driver CPU a trial, 0.97 of the workers' time used.

With ``--ray N`` one study runs on N raylets of this machine; a trial sleeps for two seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qsearch.server.driver import Drivers
from qsearch.server.queue import JobQueue
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import User
from qsearch.store.engine import open_engine
from qsearch.store.records import Job
from qsearch.store.repository import Repository
from tests.benchmarks.answering import Answering, Sleeping
from tests.benchmarks.databases import database
from tests.benchmarks.machine import machine
from tests.benchmarks.pretended import pretended
from tests.benchmarks.simulation import Cluster, SimulatedPool, Simulation, Statements
from workers.messages import Build, DatasetRef, EvaluationRequest
from workers.pool.ray_pool import RayPool

USERS = 7
WANTED = (1, 4, 16, 64)
"""Workers that studies ask for, in turn."""
STEP_S = 1.0
"""Seconds between two steps of the queue; fewer than a server's, so that they cost less here."""
RUNNER = f"{Sleeping.__module__}:{Sleeping.__name__}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a simulation found; seconds are virtual, CPU time is real.

    Attributes:
        efficiency: share used of the workers' time that running studies had work for.
        statements_a_trial: of drivers; ``writes_a_trial`` are their transactions.
        queue_wait_s: of trials in the store, middle and longest.
        study_wait_s: of studies in the server's queue, middle and longest.
        below_share_s: the longest time that a study held fewer workers than its share.
        lost, doubled: trials that were not finished, and results beyond one a trial.
    """

    workers: int
    studies: int
    trials: int
    seconds: float
    trials_per_s: float
    efficiency: float
    driver_cpu_ms_a_trial: float
    sampler_cpu_ms_a_trial: float
    server_cpu_ms_a_trial: float
    shares_cpu_ms_a_trial: float
    statements_a_trial: float
    writes_a_trial: float
    queue_wait_s: tuple[float, float]
    study_wait_s: tuple[float, float]
    below_share_s: float
    most_held: int
    lost: int
    doubled: int


class Pretending(Drivers):
    """Drivers of a server that are threads of a simulation.

    Args:
        service: runs the study of a job.
    """

    def __init__(self, options: ServerOptions, repository: Repository, service: Service) -> None:
        super().__init__(options, repository)
        self._service = service
        self._alive: set[int] = set()

    def start(self, job: Job) -> None:
        """Run the study of a job from now on."""
        self._alive.add(job.id)

        def run() -> None:
            self._service.drive(job)
            self.repository.end_job(job.id, "done", 0)
            self._alive.discard(job.id)

        self._service.simulation.start("driver", run)

    def is_alive(self, job: Job) -> bool:
        """Whether its thread runs."""
        return job.id in self._alive

    def watch(self, job: Job) -> bool:
        """Its time is not counted."""
        return False

    def reap(self, gone: Job) -> None:
        """It stored how it ended."""


class Service:
    """A server, its cluster and its users.

    Args:
        root: folder of the server.
        storage: database of queue and studies; None is SQLite, a file for each study.
        workers: CPUs of the cluster.
        charge_cpu: whether CPU time of drivers passes on the clock.
        sampler: of every study.
        wanted: workers that studies ask for, in turn.
    """

    def __init__(
        self,
        root: Path,
        storage: str | None,
        workers: int,
        charge_cpu: bool,
        sampler: str,
        wanted: Sequence[int] = WANTED,
    ) -> None:
        self.simulation = Simulation(charge_cpu)
        self.cluster = Cluster(self.simulation, workers)
        self.statements = Statements()
        self.sampler_cpu_s = 0.0
        self.waits: list[float] = []
        self.finished: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._root = root
        self._sampler = sampler
        self._wanted = wanted
        self._storage = storage
        options = ServerOptions(
            root,
            storage,
            max_studies=max(workers, 1) if workers < 100 else 100,
            workers=max(wanted),
        )
        self.queue = JobQueue(
            options,
            drivers=lambda options, repository: Pretending(options, repository, self),
            clock=self.simulation.clock,
        )

    def run(self, studies: int, trials: int) -> Report:
        """Submit studies of ``trials`` trials together, and run them to their ends."""
        self.queue.open(serve=False)
        each = -(-trials // studies)
        try:
            self.simulation.start("server", lambda: self._serve(studies, each))
            self.simulation.run()
            jobs = [job for job, _ in self.queue.jobs()]
        finally:
            self.queue.close()
        return self._report(jobs, each)

    def _serve(self, studies: int, each: int) -> None:
        for n in range(studies):
            user = User(f"user{n % USERS}", "submit")
            settings = {"model": "digits", "trials": each}
            self.queue.submit(user, settings, name=f"s{n}")
        while True:
            self.queue.step()
            if all(place is None and job.state == "done" for job, place in self.queue.jobs()):
                return
            self.simulation.sleep_until(self.simulation.clock() + STEP_S)

    def drive(self, job: Job) -> None:
        """What the process of a driver does."""
        clock = self.simulation.clock
        engine = open_engine(self._storage or f"sqlite:///{self._root / job.name}.db")
        repository = Repository(engine, clock)
        wanted = self._wanted_by(job)
        pool = SimulatedPool(self.cluster, job.name, wanted, Answering(_no_value), _seconds)
        with self.statements.of(engine):
            run = pretended(
                repository,
                pool,
                job.trials,
                sampler=self._sampler,
                batch=max(4, wanted),
                name=job.name,
                clock=clock,
            )
            run.driver.run()
        pool.close()
        self.sampler_cpu_s += run.sampler.cpu_s
        self.done[job.name] = run.driver.news.finished_here
        trials = repository.trials_of(run.driver.context.study.id)
        self.finished[job.name] = sum(trial.finished for trial in trials)
        self.waits += [(t.started_at or 0.0) - t.created_at for t in trials]
        repository.close()

    def _wanted_by(self, job: Job) -> int:
        return self._wanted[job.id % len(self._wanted)]

    def _report(self, jobs: list[Job], each: int) -> Report:
        trials = each * len(jobs)
        ended, begun = len(self.cluster.busy), min(job.started_at or 0.0 for job in jobs)
        seconds = max(end for _, _, end in self.cluster.busy) - begun
        cpu = self.simulation.cpu_s
        statements = self.statements.counts
        waited = [(job.started_at or 0.0) - job.created_at for job in jobs]
        per_trial = 1e3 / trials
        others = self.sampler_cpu_s + self.cluster.shares_cpu_s
        return Report(
            workers=self.cluster.cpus,
            studies=len(jobs),
            trials=trials,
            seconds=round(seconds, 2),
            trials_per_s=round(trials / seconds, 2),
            efficiency=round(self._efficiency(jobs, each), 4),
            driver_cpu_ms_a_trial=round(per_trial * (cpu["driver"] - others), 3),
            sampler_cpu_ms_a_trial=round(per_trial * self.sampler_cpu_s, 3),
            server_cpu_ms_a_trial=round(per_trial * cpu["server"], 3),
            shares_cpu_ms_a_trial=round(per_trial * self.cluster.shares_cpu_s, 3),
            statements_a_trial=round(
                sum(n for word, n in statements.items() if word != "COMMIT") / trials, 3
            ),
            writes_a_trial=round(statements["COMMIT"] / trials, 3),
            queue_wait_s=_middle_and_longest(self.waits),
            study_wait_s=_middle_and_longest(waited),
            below_share_s=round(max(self.cluster.below.values(), default=0.0), 2),
            most_held=self.cluster.most_held,
            lost=trials - sum(self.finished.values()),
            doubled=ended - trials + sum(self.done.values()) - trials,
        )

    def _efficiency(self, jobs: list[Job], each: int) -> float:
        """Seconds that workers were busy of those in which running studies had work for them."""
        wanted = {job.name: self._wanted_by(job) for job in jobs}
        left = dict.fromkeys(wanted, 0)
        events = [(job.started_at or 0.0, job.name, each) for job in jobs]
        events += [(end, name, -1) for name, _, end in self.cluster.busy]
        wants, possible, last = 0, 0.0, 0.0
        for now, name, more in sorted(events):
            possible += (now - last) * min(wants, self.cluster.cpus)
            last = now
            wants -= min(left[name], wanted[name])
            left[name] += more
            wants += min(left[name], wanted[name])
        return sum(end - since for _, since, end in self.cluster.busy) / possible


def _middle_and_longest(waits: list[float]) -> tuple[float, float]:
    return round(statistics.median(waits), 2), round(max(waits), 2)


def _seconds(request: EvaluationRequest) -> float:
    """Two in the mean: one to three, by configuration."""
    digest = hashlib.sha256(repr(sorted(request.build.qconfig.items())).encode()).digest()
    return 1.0 + digest[0] / 127.5


def _no_value(handle: Any) -> Any:
    raise AssertionError(f"no request has the value {handle}")


def simulate(
    workers: int,
    studies: int,
    trials: int,
    *,
    storage: str | None = None,
    charge_cpu: bool = True,
    sampler: str = "random",
    wanted: Sequence[int] = WANTED,
) -> Report:
    """Run studies on a server that is simulated.

    Args:
        workers: CPUs of the cluster.
        studies: of several users.
        trials: of all studies together.
        storage: a PostgreSQL database; None is SQLite.
        wanted: workers that studies ask for, in turn.
    """
    with tempfile.TemporaryDirectory(prefix="qsearch-scale-") as folder:
        service = Service(Path(folder), storage, workers, charge_cpu, sampler, wanted)
        return service.run(studies, trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="10,100,1000")
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--storage", default="sqlite,postgres")
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--wanted", default=",".join(map(str, WANTED)))
    parser.add_argument("--ray", type=int, help="raylets of a real cluster")
    options = parser.parse_args()
    counts = [int(word) for word in options.workers.split(",")]
    for kind in options.storage.split(","):
        if options.ray:
            on_ray(options.ray, counts, options.trials, kind)
            continue
        for workers in counts:
            with database(kind) as url:
                found = simulate(
                    workers,
                    options.studies,
                    options.trials,
                    storage=None if kind == "sqlite" else url,
                    sampler=options.sampler,
                    wanted=[int(word) for word in options.wanted.split(",")],
                )
            print(json.dumps({"storage": kind, **asdict(found), **machine()}), flush=True)


def on_ray(nodes: int, counts: list[int], trials: int, kind: str) -> None:
    """One study on workers that sleep; prints the efficiency of each number of workers."""
    from ray.cluster_utils import Cluster as RayCluster

    os.environ["PYTHONPATH"] = os.getcwd()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    cluster = RayCluster()
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=-(-max(counts) // nodes), object_store_memory=100 << 20)
        for workers in counts:
            with database(kind) as url:
                found = measure_ray(url, cluster.address, workers, trials)
            print(json.dumps({**found, "nodes": nodes, **machine()}), flush=True)
    finally:
        cluster.shutdown()


def measure_ray(url: str, address: str, workers: int, trials: int) -> dict[str, Any]:
    """One study on so many workers, from the moment all of them have answered."""
    repository = Repository(open_engine(url))
    pool = RayPool(workers, address, runner=RUNNER, start_timeout_s=600)
    try:
        warm_up(pool)
        run = pretended(repository, pool, trials, batch=max(4, workers))
        begin, cpu = time.monotonic(), time.process_time()
        run.driver.run()
        wall, cpu = time.monotonic() - begin, time.process_time() - cpu
    finally:
        pool.close()
    counts = repository.count_trials(run.driver.context.study.id)
    repository.close()
    assert counts.complete == trials, counts
    return {
        "workers": workers,
        "trials": trials,
        "efficiency": round(trials * Sleeping.sleep_s / workers / wall, 4),
        "wall_s": round(wall, 2),
        "driver_cpu_ms_a_trial": round(1e3 * cpu / trials, 2),
    }


def warm_up(pool: RayPool) -> None:
    """Wait until every worker answered something."""
    nothing = EvaluationRequest(Build(b"", {}, None, "engine"), DatasetRef("npz"), range(32), ())
    for number in range(pool.num_workers):
        pool.submit(("warm", number), nothing)
    while pool.pending or pool.wait_ready(0.0) < pool.num_workers:
        pool.next_finished(timeout_s=1.0)
        if not pool.pending and pool.wait_ready(0.0) < pool.num_workers:
            pool.submit(("warm", pool.wait_ready(0.0)), nothing)


if __name__ == "__main__":
    main()
