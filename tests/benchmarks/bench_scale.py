"""How busy workers are kept: trials that sleep two seconds on a Ray cluster of several nodes.

    python -m tests.benchmarks.bench_scale [--workers 1,4,16,64] [--trials 1280] [--nodes 4]
                                           [--trials-per-worker 20] [--storage sqlite]

Prints a JSON object per number of workers: efficiency = trials x 2 s / workers / wall seconds,
measured from the moment all workers answered; what they took to start is reported apart. The nodes
are raylets on this machine with logical CPUs: they sleep, so two cores are enough. Wanted: 0.95.
With --trials-per-worker fewer workers get fewer trials, or one worker takes 43 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.benchmarks.answering import Sleeping
from tests.benchmarks.databases import database
from tests.benchmarks.machine import machine
from tests.benchmarks.pretended import pretended
from workers.messages import DatasetRef, EvaluationRequest, Range
from workers.pool.ray_pool import RayPool

RUNNER = f"{Sleeping.__module__}:{Sleeping.__name__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,4,16,64")
    parser.add_argument("--trials", type=int, default=1280)
    parser.add_argument("--trials-per-worker", type=int)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--storage", default="sqlite")
    options = parser.parse_args()
    counts = [int(word) for word in options.workers.split(",")]
    os.environ["PYTHONPATH"] = os.getcwd()
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    begin = time.monotonic()
    try:
        for _ in range(options.nodes):
            cluster.add_node(
                num_cpus=-(-max(counts) // options.nodes), object_store_memory=100 << 20
            )
        started = time.monotonic() - begin
        for workers in counts:
            trials = options.trials
            if options.trials_per_worker:
                trials = min(trials, options.trials_per_worker * workers)
            with database(options.storage) as url:
                found = measure(url, cluster.address, workers, trials)
            found["cluster_start_s"] = round(started, 1)
            print(json.dumps({**found, "nodes": options.nodes, **machine()}), flush=True)
    finally:
        cluster.shutdown()


def measure(url: str, address: str, workers: int, trials: int) -> dict[str, Any]:
    """One study on so many workers."""
    repository = Repository(open_engine(url))
    pool = RayPool(workers, address, runner=RUNNER, start_timeout_s=600)
    try:
        begin = time.monotonic()
        warm_up(pool)
        start_s = time.monotonic() - begin
        run = pretended(repository, pool, trials, batch=max(4, workers))
        begin, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        run.driver.run()
        wall = time.monotonic() - begin
        spent = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        pool.close()
    counts = repository.count_trials(run.driver.study.id)
    repository.close()
    assert counts.complete == trials, counts
    return {
        "workers": workers,
        "trials": trials,
        "efficiency": round(trials * Sleeping.sleep_s / workers / wall, 4),
        "wall_s": round(wall, 2),
        "workers_start_s": round(start_s, 1),
        "driver_cpu_ms_a_trial": round(
            1e3 * (spent.ru_utime - cpu.ru_utime + spent.ru_stime - cpu.ru_stime) / trials, 2
        ),
    }


def warm_up(pool: RayPool) -> None:
    """Wait until every worker answered something."""
    nothing = EvaluationRequest(b"", {}, None, "grid", DatasetRef("npz"), Range(0, 32), ())
    for number in range(pool.num_workers):
        pool.submit(("warm", number), nothing)
    while pool.pending or len(pool.pids) < pool.num_workers:
        pool.next_finished(timeout_s=1.0)
        if not pool.pending and len(pool.pids) < pool.num_workers:
            pool.submit(("warm", len(pool.pids)), nothing)


if __name__ == "__main__":
    main()
