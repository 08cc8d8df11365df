"""Trials in the pool: split into parts, gathered, pruned and merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from numpy.typing import NDArray

from compiler.qtypes.qconfig import QConfig
from qsearch.errors import SearchFailedError
from qsearch.run.progress import Progress
from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import FIRST_DB, Score, sqnr_value
from qsearch.search.pruner import SignFlipPruner
from qsearch.search.scoring import Scorer, failed, merge
from qsearch.store.records import TRIED, Ended, Outcome, Shard, Trial
from workers.errors import BrokenRunError, DifferingOutputsError
from workers.messages import EvaluationResult
from workers.pool.protocol import Finished, Loss
from workers.pool.queued_pool import WorkerPool

STARTING: Final = "starting workers"
"""Name of the phase that lasts until the first worker can work."""
_POLL_S: Final = 1.0


def await_workers(
    pool: WorkerPool, progress: Progress, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Wait for the first worker, so that no phase counts their start as its own time.

    Args:
        pool: whose workers are starting; nothing is said where one has started.
        progress: shows how many of them have.
        stopped: whether to wait no longer.
    Raises:
        WorkerError: they cannot be started.
    """
    ready = pool.wait_ready(0.0)
    if ready:
        return
    progress.phase(STARTING, pool.num_workers)
    while not ready and not stopped():
        progress.advance(0)
        ready = pool.wait_ready(_POLL_S)
    # The others follow while the first one works: the phase is over all the same.
    progress.phase(STARTING, ready or pool.num_workers, ready)


def run_requests(
    pool: WorkerPool, requests: Sequence[Any], name: str, ended: Callable[[Any], None]
) -> list[Any]:
    """Submit requests and wait for their results, which come back in the order of the requests.

    Args:
        pool: results of other requests are given back to it.
        name: of the requests, for logs.
        ended: called with each result as soon as it is there.
    Raises:
        Exception: the first error of a request; those that wait are dropped.
        SearchFailedError: the pool is idle and a result is missing.
    """
    tags: list[Hashable] = [(name, place) for place in range(len(requests))]
    for tag, request in zip(tags, requests, strict=True):
        pool.submit(tag, request)
    missing = set(tags)
    results: dict[Hashable, Any] = {}
    others: list[Finished] = []
    try:
        while missing:
            finished = pool.next_finished(timeout_s=_POLL_S)
            if finished is None:
                if pool.pending == 0:
                    raise SearchFailedError(
                        f"the pool lost {len(missing)} requests without an answer",
                        where=", ".join(sorted(map(str, missing))[:4]),
                        fix="run the same command again",
                    )
                continue
            if finished.tag not in missing:
                others.append(finished)
                continue
            if finished.error is not None:
                raise finished.error
            missing.discard(finished.tag)
            results[finished.tag] = finished.result
            ended(finished.result)
    finally:
        pool.drop(missing)
        pool.give_back(others)
    return [results[tag] for tag in tags]


@dataclass(slots=True)
class _Run:
    trial: Trial
    since: float
    parts: int
    results: dict[int, EvaluationResult] = field(default_factory=dict)
    scored: int = 0
    log: str | None = None


@dataclass(slots=True)
class RunningTrials:
    """The trials that run in the pool of this driver.

    Args:
        pool: where they run.
        scorer: how requests are made and answers read.
        pruner: when to leave the rest of a trial; None evaluates all that do not collapse.
        known: trials of the study that ended; None compares no trial with the first.
        roundings: what rounding of weights found, as arrays, by number of the trial.
        differing: numbers of trials that a spot check ended.
    """

    pool: WorkerPool
    scorer: Scorer
    pruner: SignFlipPruner | None
    roundings: dict[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    known: KnownTrials | None = None
    differing: set[int] = field(default_factory=set)
    _running: dict[int, _Run] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def ids(self) -> list[int]:
        """Row ids of the running trials."""
        return [run.trial.id for run in self._running.values()]

    @property
    def numbers(self) -> list[int]:
        """Numbers of the running trials."""
        return list(self._running)

    def begin(
        self, trial: Trial, qconfig: QConfig, scales: tuple[float, ...] | None, now: float
    ) -> None:
        """Hand a trial with its configuration to the pool."""
        checked = self.scorer.is_checked(trial.number)
        requests = self.scorer.requests(qconfig, scales, checked)
        self._running[trial.number] = _Run(trial, now, len(requests))
        for part, request in enumerate(requests):
            tag = (trial.number, part)
            self.pool.submit(tag, request, group=trial.number, first=trial.stage == TRIED)

    def trial_of(self, loss: Loss) -> Trial | None:
        """The running trial that a worker died on."""
        run = self._run_of(loss.tag)
        if run is None:
            return None
        run.log = loss.log or run.log
        return run.trial

    def take(self, finished: Finished, now: float) -> Ended | None:
        """Take a result of the pool; how the trial ended, if this was its last part.

        Raises:
            BrokenRunError: no trial's fault; the trial runs again when the search goes on.
        """
        run = self._run_of(finished.tag)
        if run is None:
            return None  # a part of a trial that ended before
        if isinstance(finished.error, BrokenRunError):
            raise finished.error
        if finished.error is not None:
            self._leave(run)
            if isinstance(finished.error, DifferingOutputsError):
                self.differing.add(run.trial.number)
            outcome = failed(finished.error, 1, now - run.since)
            return Ended(run.trial, outcome, log=run.log or _trace(finished.error))
        assert isinstance(finished.tag, tuple)
        run.results[finished.tag[1]] = finished.result
        reason = None
        while reason is None and run.scored in run.results and not self._collapsed(run):
            run.scored += 1
            if self.pruner is not None and run.scored < run.parts:
                seen = [run.results[part] for part in range(run.scored)]
                reason = self.pruner.reason_to_prune(run.trial, seen)
        if reason is None and run.scored < run.parts and not self._collapsed(run):
            return None
        self._leave(run)
        kept = [run.results[part] for part in range(max(run.scored, 1))]
        merged = merge(kept)
        if merged.rounding:
            self.roundings[run.trial.number] = merged.rounding
        if self.pruner and reason:
            rival = self.pruner.rival_of(run.trial, kept)
        else:
            rival = None
        outcome = self.scorer.outcome(merged, now - run.since, reason, rival)
        outcome = self._beside_first(run.trial, outcome)
        return Ended(run.trial, outcome, _shards(kept, run.parts))

    def _beside_first(self, trial: Trial, outcome: Outcome) -> Outcome:
        """The outcome with SQNR of trial 0, of which trials of its own batch do not know."""
        if outcome.score is None:
            return outcome
        if trial.number == 0:
            first: Score | None = outcome.score
        elif self.known is not None and trial.batch > 0 and 0 in self.known.by_number:
            first = self.known.by_number[0].outcome.score
        else:
            first = None
        if first is None:
            return outcome
        return replace(outcome, score={**outcome.score, FIRST_DB: sqnr_value(first)})

    def forget_roundings(self, but: int | None) -> None:
        """Forget what rounding found for all trials but one, which may win."""
        for number in self.roundings.keys() - {but}:
            del self.roundings[number]

    def clear(self) -> None:
        """Forget all that runs; the pool has stopped."""
        self._running.clear()

    def _run_of(self, tag: Hashable) -> _Run | None:
        if isinstance(tag, tuple):
            return self._running.get(tag[0])
        return None

    @staticmethod
    def _collapsed(run: _Run) -> bool:
        return 0 in run.results and run.results[0].collapsed

    def _leave(self, run: _Run) -> None:
        del self._running[run.trial.number]
        self.pool.drop([(run.trial.number, part) for part in range(run.parts)])


def _shards(results: Sequence[EvaluationResult], parts: int) -> tuple[Shard, ...]:
    """None of sums that are not finite: no JSON holds them, and every trial loses against them."""
    if not all(
        math.isfinite(v) for r in results for sums in r.sums.values() for v in sums.values()
    ):
        return ()
    return tuple(
        Shard(part, parts, r.samples, r.sums, r.compile_cpu_s + r.run_cpu_s)
        for part, r in enumerate(results)
    )


def _trace(error: Exception) -> str | None:
    """The traceback a worker attached to an error that is not one of our messages."""
    return "\n".join(getattr(error, "__notes__", ())) or None
