"""What a trial costs its driver: proposals, store, bookkeeping; nothing is calibrated or judged.

    python -m tests.benchmarks.bench_driver [--trials 10000] [--storage sqlite,postgres]
                                            [--sampler random] [--batch 4]

Prints a JSON object per storage: CPU milliseconds a trial with and without the sampler, growth of
the resident set, and seconds until a new driver of the finished study has replayed it and
finished four trials more. Wanted: at most 5 ms beside the sampler, 200 MB, 8 s.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.benchmarks.answering import Answering
from tests.benchmarks.databases import database
from tests.benchmarks.machine import machine
from tests.benchmarks.pretended import pretended
from workers.pool.queued_pool import InlinePool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--storage", default="sqlite,postgres")
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    for kind in options.storage.split(","):
        with database(kind) as url:
            found = measure(url, options.trials, options.sampler, options.batch)
        print(json.dumps({"storage": kind, **found, **machine()}))


def measure(url: str, trials: int, sampler: str, batch: int) -> dict[str, Any]:
    """Run a study of trials that cost nothing, then open it again."""
    repository = Repository(open_engine(url))
    run = pretended(repository, InlinePool(Answering), trials, sampler=sampler, batch=batch)
    rss, cpu, wall = rss_mb(), time.process_time(), time.monotonic()
    run.driver.run()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    grown = rss_mb() - rss
    repository.close()
    again_cpu, again_wall = time.process_time(), time.monotonic()
    repository = Repository(open_engine(url))
    again = pretended(repository, InlinePool(Answering), trials + 4, sampler=sampler, batch=batch)
    again.driver.run()
    again_cpu, again_wall = time.process_time() - again_cpu, time.monotonic() - again_wall
    counts = repository.count_trials(again.driver.study.id)
    repository.close()
    assert counts.finished == counts.complete == trials + 4, counts
    return {
        "trials": trials,
        "sampler": sampler,
        "cpu_ms_a_trial": round(1e3 * cpu / trials, 3),
        "beside_the_sampler_cpu_ms": round(1e3 * (cpu - run.sampler.cpu_s) / trials, 3),
        "trials_per_s": round(trials / wall, 1),
        "rss_growth_mb": round(grown, 1),
        "reopen_s": round(again_wall, 2),
        "reopen_cpu_s": round(again_cpu, 2),
    }


def rss_mb() -> float:
    """Resident set of this process now, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
