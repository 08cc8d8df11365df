"""A study whose trials cost nothing or sleep: what is left is the driver, the store, the pool."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.qtypes.qconfig import QConfig
from qsearch.run.progress import Progress
from qsearch.search.context import Budget, StudyContext
from qsearch.search.driver import Driver
from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import Objective
from qsearch.search.running_trials import RunningTrials
from qsearch.search.sampler import SamplerSpec, StudySampler
from qsearch.search.scoring import Scorer
from qsearch.search.space import Parameter, Space
from qsearch.search.trial_queue import TrialQueue
from qsearch.store.records import NewStudy, Study
from qsearch.store.repository import Repository
from workers.messages import Build, DatasetRef, EvaluationRequest
from workers.pool.queued_pool import WorkerPool

START = QConfig.recommended()
SPACE = Space(
    (
        Parameter("weight_granularity", ("channel", "tensor")),
        Parameter("weight_scale", (START.weight_scale, "power2", "mse")),
        Parameter("calibrate_mode", ("percentile",)),
        Parameter("percentile", tuple(1 - 10 ** -(2 + k / 8) for k in range(40))),
        Parameter("smooth_alpha", (None, *(k / 64 for k in range(1, 64)))),
    )
)
"""30,720 points."""


class NoScales:
    """Every configuration has the same ranges, so none is the same work as another."""

    def scales_for(self, qconfig: QConfig) -> tuple[float, ...]:
        """A range that names the configuration."""
        return (qconfig.percentile,)


def score_of(sums: Any) -> dict[str, float | None]:
    """Agreement alone."""
    return {"top1": None, "agreement": sums["agreement"]["right"], "sqnr_db": 30.0}


class TimedSampler(StudySampler):
    """Counts the CPU seconds that go to the sampler."""

    cpu_s = 0.0

    def propose(self, *args: Any) -> Any:
        begin = time.thread_time()
        try:
            return super().propose(*args)
        finally:
            self.cpu_s += time.thread_time() - begin

    def add_history(self, trials: Any) -> None:
        begin = time.thread_time()
        super().add_history(trials)
        self.cpu_s += time.thread_time() - begin


@dataclass(frozen=True)
class Pretended:
    """A driver and its sampler."""

    driver: Driver
    sampler: TimedSampler


def open_study(repository: Repository, name: str, trials: int) -> Study:
    """The study of this name, made if need be."""
    new = NewStudy(name, "m.onnx", "a" * 64, {"metric": "agreement"}, "b" * 64, 0, trials, "c")
    return repository.find_study(name) or repository.create_study(new)


def pretended(
    repository: Repository,
    pool: WorkerPool,
    trials: int,
    *,
    sampler: str = "random",
    batch: int,
    name: str = "pretended",
    clock: Callable[[], float] = time.monotonic,
) -> Pretended:
    """A driver of a study that asks ``sampler``; its seed follows from the name."""
    objective = Objective("agreement")
    timed = TimedSampler(
        SPACE, START, objective, SamplerSpec(sampler, zlib.crc32(name.encode()), batch)
    )
    context = StudyContext(repository, open_study(repository, name, trials), pool, Progress())
    budget = Budget(trials, clock=clock)
    queue = TrialQueue(context, KnownTrials(objective), timed, NoScales(), {"code": name}, budget)
    build = Build(b"", {}, None, "engine")
    whole = EvaluationRequest(build, DatasetRef("npz"), range(32), (), ())
    scorer = Scorer(whole, score_of)
    driver = Driver(context, queue, RunningTrials(pool, scorer, None), budget)
    return Pretended(driver, timed)
