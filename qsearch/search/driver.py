"""The loop: propose a batch, store it, run what is unfinished of it, tell, repeat.

A batch is stored whole before any of it runs, and proposed from the trials of earlier batches
only. So the driver may be killed at any moment: the rows say which trials are finished, the others
are run again with the same parameters, and the next batch is the one it would have been.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from compiler.errors import CompilerError
from compiler.qtypes.qconfig import QConfig
from qsearch.errors import SearchFailedError
from qsearch.progress import TRIALS, Progress
from qsearch.search.budget import Budget
from qsearch.search.judging import Judging, failed
from qsearch.search.objectives import Objective
from qsearch.search.proposals import Proposer
from qsearch.search.space import canonical_fields, content_hash
from qsearch.store.records import NewTrial, Outcome, Study, Trial
from qsearch.store.repository import Repository
from workers.pool.protocol import WorkerPool

log = logging.getLogger("qsearch.search.driver")

SPACE_EXHAUSTED = "space exhausted"
TIMEOUT = "timeout"
_POLL_S = 1.0


class ScaleSource(Protocol):
    """Where the activation scales of a configuration come from."""

    def scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
        """Real-valued range of each activation point in binding order; None for global_scale."""


@dataclass(slots=True)
class Driver:
    """Drives one study to its number of trials.

    Args:
        repository, study: the truth.
        proposer: what to try next; without history, the driver tells it.
        pool: where trials run.
        scales: calibration, done once and cached.
        judging: what the evaluations share.
        work_key: all that decides a score beside the configuration (model, data, code, judge).
        budget: when to stop.
        progress: what the user sees.
        clock: monotonic seconds.
    """

    repository: Repository
    study: Study
    proposer: Proposer
    pool: WorkerPool
    scales: ScaleSource
    judging: Judging
    objective: Objective
    work_key: Mapping[str, Any]
    budget: Budget
    progress: Progress
    clock: Callable[[], float] = time.monotonic
    finished_here: int = 0
    """Trials that this run finished."""
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on them."""
    _trials: dict[int, Trial] = field(default_factory=dict)
    _best: Trial | None = None
    _variants: set[str] = field(default_factory=set)

    def run(self) -> str | None:
        """Finish the study's trials; why it stopped early, or None.

        Raises:
            KeyboardInterrupt: Ctrl-C; running trials went back to the queue first.
            StoreError, WorkerError: the store or the pool cannot go on.
        """
        requeued = self.repository.requeue_running(self.study.id)
        if requeued:
            self.repository.add_event(self.study.id, "requeued", data={"trials": requeued})
        for trial in self.repository.trials_of(self.study.id):
            self._remember(trial)
        batch = max((trial.batch for trial in self._trials.values()), default=0)
        self.proposer.add_history([t for t in self._trials.values() if t.batch < batch])
        self._variants = {content_hash(self.proposer.start.calibration_fields())}
        self.progress.phase(TRIALS, self.budget.trials, self._finished)
        try:
            return self._batches(batch)
        except BaseException:
            self.pool.cancel_all()
            self.repository.requeue_running(self.study.id)
            raise

    @property
    def _finished(self) -> int:
        return sum(trial.finished for trial in self._trials.values())

    def _batches(self, batch: int) -> str | None:
        rows = [trial for trial in self._trials.values() if trial.batch == batch]
        while self._finished < self.budget.trials:
            if self.budget.out_of_time:
                return TIMEOUT
            room = min(self.proposer.batch_size - len(rows), self.budget.trials - len(self._trials))
            if room > 0:
                rows += self._queue(batch, rows, room)
            if not rows:
                return SPACE_EXHAUSTED
            todo = [t for t in rows if not t.finished and t.number < self.budget.trials]
            if self._run_batch(todo):
                return TIMEOUT
            told = [self._trials[row.number] for row in rows]
            self.proposer.add_history([trial for trial in told if trial.finished])
            batch, rows = batch + 1, []
        return None

    def _remember(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        if trial.state == "complete":
            self._best = self.objective.best(filter(None, (self._best, trial)))

    def _queue(self, batch: int, rows: Sequence[Trial], room: int) -> list[Trial]:
        """Store the next proposals of the batch; those it has already are not stored again."""
        stored = {row.config_hash for row in rows}
        new: list[NewTrial] = []
        for proposal in self.proposer.propose(batch):
            if proposal.config_hash in stored or len(new) == room:
                continue
            fields = proposal.qconfig.to_dict()
            new.append(
                NewTrial(
                    number=len(self._trials) + len(new),
                    batch=batch,
                    params=proposal.params,
                    qconfig=fields,
                    config_hash=proposal.config_hash,
                    work_hash=self._work_hash(proposal.qconfig),
                )
            )
        self.repository.add_trials(self.study.id, new)
        numbers = {trial.number for trial in new}
        stored_rows = self.repository.trials_of(self.study.id, batch=batch)
        queued = [trial for trial in stored_rows if trial.number in numbers]
        for trial in queued:
            self._remember(trial)
        return queued

    def _work_hash(self, qconfig: QConfig) -> str:
        """Equal for configurations that make the same module: ranges count, not their origin.

        On few samples, the maximum and a high percentile are often the same number.
        """
        fields = canonical_fields(qconfig.to_dict())
        try:
            scales = self._scales_for(qconfig)
        except CompilerError:
            scales = None  # told when the trial is run
        if scales is not None:
            for name in ("calibrate_mode", "percentile"):
                fields.pop(name, None)
            fields["activation_scales"] = list(scales)
        return content_hash({**self.work_key, "qconfig": fields})

    def _run_batch(self, trials: Sequence[Trial]) -> bool:
        """Run trials to their end, equal work once; True when time ran out first."""
        first: dict[str, Trial] = {}
        for trial in trials:
            first.setdefault(trial.work_hash, trial)
        twins = [trial for trial in trials if first[trial.work_hash] is not trial]
        return self._run(list(first.values())) or self._run(twins)

    def _run(self, trials: Sequence[Trial]) -> bool:
        answers = self.repository.answered_work([trial.work_hash for trial in trials])
        ready: list[tuple[Trial, tuple[float, ...] | None]] = []
        started: dict[int, tuple[Trial, float]] = {}
        for trial in trials:
            answer = answers.get(trial.work_hash)
            if answer is not None:
                self._finish(trial, replace(answer.outcome, attempts=0, from_store=True))
                continue
            try:
                ready.append((trial, self._scales_for(QConfig.from_dict(trial.qconfig))))
            except CompilerError as error:
                self._finish(trial, failed(error))
        # Only now, since finding scales may need the whole pool.
        for trial, scales in ready:
            self.repository.start_trial(trial.id)
            self.pool.submit(trial.number, self.judging.request(trial.qconfig, scales))
            started[trial.number] = (trial, self.clock())
        while started:
            if self.budget.out_of_time:
                self.pool.cancel_all()
                self.repository.requeue_running(self.study.id)
                return True
            finished = self.pool.next_finished(timeout_s=self._wait_s())
            if finished is None:
                self._check_alive(started)
                continue
            if finished.tag not in started:
                continue  # of a batch that was cancelled
            trial, since = started.pop(finished.tag)
            self._finish(trial, self.judging.outcome(trial, finished, self.clock() - since))
        return False

    def _scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
        """Scales; where that is the first of a graph variant, calibration was in between."""
        variant = content_hash(qconfig.calibration_fields())
        measured = qconfig.calibrate_mode != "global_scale"
        try:
            return self.scales.scales_for(qconfig)
        finally:
            if measured and variant not in self._variants:
                self._variants.add(variant)
                self.progress.phase(TRIALS, self.budget.trials, self._finished)

    def _wait_s(self) -> float:
        left = self.budget.seconds_left
        return _POLL_S if left is None else max(0.01, min(_POLL_S, left))

    def _check_alive(self, started: Mapping[int, Any]) -> None:
        if self.pool.pending == 0:
            raise SearchFailedError(
                f"the pool lost {len(started)} requests without an answer",
                where=f"trials {sorted(started)}",
                fix="run the same command again; finished trials are kept",
            )

    def _finish(self, trial: Trial, outcome: Outcome) -> None:
        self.repository.finish_trial(trial.id, outcome)
        self.repository.add_event(
            self.study.id, "trial", trial=trial.number, data={"state": outcome.state}
        )
        self.finished_here += 1
        if not outcome.from_store:
            self.worker_cpu_s += (outcome.compile_cpu_s or 0.0) + (outcome.run_cpu_s or 0.0)
        why = f": {outcome.failure}" if outcome.failure is not None else ""
        log.info("trial %d %s %s%s", trial.number, outcome.state, outcome.score or "", why)
        self._remember(replace(trial, outcome=outcome))
        self.progress.advance(1, self._best_note())

    def _best_note(self) -> str:
        best = self._best
        if best is None or best.outcome.score is None:
            return ""
        value = self.objective.value(best.outcome.score)
        unit = f"{value:.2f} dB" if self.objective.metric == "sqnr" else f"{value:.4f}"
        return f"best {self.objective.metric} {unit} (trial {best.number})"
