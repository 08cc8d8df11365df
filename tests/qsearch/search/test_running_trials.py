"""Trials in parts: early stop sees them in order, whatever order they come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from compiler.qtypes.qconfig import QConfig
from qsearch.search.running_trials import RunningTrials
from qsearch.search.scoring import Scorer
from qsearch.store.records import Ended, Outcome, Trial
from workers.messages import Build, DatasetRef, EvaluationRequest, EvaluationResult
from workers.pool.protocol import Finished
from workers.pool.queued_pool import JobQueue

PARTS = 3
CONFIG = QConfig.recommended()


class Queue(JobQueue):
    """A pool that only queues."""

    def submit(self, tag: Any, request: Any, group: Any = None, first: bool = False) -> None:
        self.add(tag, request, group, first)


def result(part: int, collapsed: bool = False) -> EvaluationResult:
    return EvaluationResult(
        sums={"agreement": {"right": 10.0 * (part + 1), "total": 32.0}},
        samples=32,
        collapsed=collapsed,
        outputs_sha256="",
        outputs=(np.full((32, 2), part, np.float32),),
        compile_cpu_s=0.0,
        run_cpu_s=1.0,
        peak_rss_bytes=1,
    )


class StopAfter:
    """Stops after so many parts, and remembers what it was asked."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.asked: list[int] = []

    def reason_to_prune(self, trial: Trial, parts: Sequence[EvaluationResult]) -> str | None:
        self.asked.append(len(parts))
        assert [r.sums["agreement"]["right"] for r in parts] == [
            10.0 * (n + 1) for n in range(len(parts))
        ]
        return "worse than the best" if len(parts) == self.parts else None

    def rival_of(self, trial: Trial, parts: Sequence[EvaluationResult]) -> None:
        """No trial is known beside this one."""


def run(order: Sequence[int], stop: StopAfter, collapsed: bool = False, more: float = 0.0) -> Ended:
    build = Build(b"", {}, None, "engine")
    scorer = Scorer(
        EvaluationRequest(build, DatasetRef("npz"), range(96), ("agreement",), ()),
        lambda sums: {"agreement": sums["agreement"]["right"] / sums["agreement"]["total"]},
        parts=PARTS,
    )
    pool = Queue(max_attempts=3)
    running = RunningTrials(pool, scorer, stop)  # type: ignore[arg-type]
    trial = Trial(
        5,
        0,
        {},
        CONFIG.to_dict(),
        "c",
        "w",
        id=1,
        study_id=1,
        outcome=Outcome("running"),
        created_at=0.0,
        started_at=0.0,
        finished_at=None,
    )
    running.begin(trial, CONFIG, (1.0,), now=0.0)
    assert len(pool) == PARTS
    for part in order:
        found = result(part, collapsed and part == 0)
        found = replace(found, sums={"agreement": {**found.sums["agreement"], "more": more}})
        end = running.take(Finished((5, part), found), now=2.0)
        if end is not None:
            assert len(running) == len(pool) == 0
            return end
    raise AssertionError("the trial did not end")


@pytest.mark.parametrize("order", list(permutations(range(PARTS))))
def test_a_stopped_trial_is_the_same_in_every_order_of_answers(order: tuple[int, ...]) -> None:
    stop = StopAfter(2)
    end = run(order, stop)
    assert (end.outcome.state, end.outcome.samples) == ("pruned", 64)
    assert end.outcome.score == {"agreement": 30 / 64}
    assert end.outcome.failure is not None
    assert end.outcome.failure.what == "worse than the best"
    assert stop.asked == [1, 2]
    assert [shard.shard for shard in end.shards] == [0, 1]


@pytest.mark.parametrize("order", list(permutations(range(PARTS))))
def test_a_whole_trial_is_the_same_in_every_order_of_answers(order: tuple[int, ...]) -> None:
    end = run(order, StopAfter(9))
    assert replace(end.outcome, seconds=0.0) == replace(
        run(range(PARTS), StopAfter(9)).outcome, seconds=0.0
    )
    assert (end.outcome.state, end.outcome.samples, len(end.shards)) == ("complete", 96, PARTS)


@pytest.mark.parametrize("order", list(permutations(range(PARTS))))
def test_a_collapse_in_the_first_part_ends_the_trial_with_that_part(
    order: tuple[int, ...],
) -> None:
    end = run(order, StopAfter(9), collapsed=True)
    assert (end.outcome.state, end.outcome.samples) == ("pruned", 32)
    assert end.outcome.collapsed


def test_sums_that_are_not_finite_are_not_kept_to_compare_others_with() -> None:
    assert run(range(PARTS), StopAfter(9), more=float("inf")).shards == ()
