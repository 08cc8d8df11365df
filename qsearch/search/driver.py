"""The loop: propose batches, store them, run their trials, tell the sampler, repeat.

A batch is stored whole before any of it runs, and proposed from the trials of earlier batches
only. So a driver may be killed at any moment: the rows say which trials are finished, the others
are run again with the same parameters, and the next batch is the one it would have been. Samplers
that look at no history do not wait for a batch to end.

Several drivers may work on one study of a PostgreSQL store. Each leases trials, sends heartbeats
while it lives, and takes over what a dead driver left (``leases``); equal histories propose equal
batches, so the second driver to store a batch finds it there.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from compiler.errors import CompilerError
from qsearch.errors import ConflictError, SearchFailedError
from qsearch.notifying import BEST
from qsearch.progress import TRIALS
from qsearch.search.context import TIMEOUT, Budget, Control, StudyContext
from qsearch.search.known_trials import KnownTrials
from qsearch.search.running_trials import RunningTrials, await_workers
from qsearch.search.scoring import failed
from qsearch.search.stages import StageTracker
from qsearch.search.trial_queue import PATIENT, SETTLED, TrialQueue
from qsearch.search.trying import TRY, wishes
from qsearch.settings import AUTO_PATIENCE
from qsearch.store.leases import BEAT_S, LEASE_S, LeaseMonitor, heartbeat
from qsearch.store.records import (
    TRIED,
    TRIED_BATCH,
    CommandKind,
    DriverRecord,
    Ended,
    NewTrial,
    StudyState,
    Trial,
)
from workers.errors import BrokenRunError
from workers.metrics.registry import by_option
from workers.process import code_version

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

TOGETHER_S: Final = 0.25
"""Seconds that a trial that ended may wait for others to be stored with it."""

log = logging.getLogger("qsearch.search.driver")


SPACE_EXHAUSTED: Final = "space exhausted"
OUT_OF_PATIENCE: Final = "nothing better"
STOPPED: Final = "stopped on request"
DIFFERS: Final = "scores_differ"
"""Kind of the event of a trial whose outputs are not those of the exact reference."""
_POLL_S: Final = 1.0
_IDLE_S: Final = 0.2


@dataclass(slots=True)
class Driver:
    """Drives one study to its number of trials.

    Args:
        context: the study.
        queue: proposes trials and stores them.
        running: the trials that run in the pool.
        budget: when to stop.
        control: who is told of trials, and who may stop the search.
        stages: told which stage has begun.
        leases: tells which other drivers are dead.
        keep_failed: leave trials that failed in earlier runs; else they are tried again.
    """

    context: StudyContext
    queue: TrialQueue
    running: RunningTrials
    budget: Budget
    control: Control = field(default_factory=Control)
    stages: StageTracker | None = None
    leases: LeaseMonitor = field(default_factory=LeaseMonitor)
    keep_failed: bool = False
    finished_here: int = 0
    """Trials that this run finished."""
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on them."""
    _begun: float = math.inf
    _estimated: bool = False
    _me: int = 0
    _paused: bool = False
    _others: int = 0
    _seen_command: int = 0
    _seen_wishes: set[int] = field(default_factory=set)
    _looked: float = -math.inf
    _watched: float = -math.inf

    @property
    def rows(self) -> Repository:
        """The store."""
        return self.context.repository

    @property
    def study_id(self) -> int:
        """Id of the study's row."""
        return self.context.study_id

    @property
    def trials(self) -> KnownTrials:
        """What is known of the study's trials."""
        return self.queue.trials

    def run(self) -> str | None:
        """Finish the study's trials; why it stopped early, or None.

        Raises:
            KeyboardInterrupt: Ctrl-C; running trials went back to the queue first.
            StoreError, WorkerError: the store or the pool cannot go on.
        """
        with self._joined():
            self._load()
            return self._loop()

    def run_also(self, new: NewTrial, note: Callable[[], None]) -> None:
        """Run one trial beyond the budget, which a killed driver may have stored.

        Args:
            note: called between storing and running it.
        Raises:
            as ``run``.
        """
        try:
            added = self.rows.add_trials(self.study_id, [new])
            self.trials.note_all(added)
        except ConflictError:
            self.queue.read_new()  # another driver stored it first
        note()
        self.budget.trials = self.trials.next_number
        with self._joined():
            self._loop()

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Work on the study while the block runs."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._me = self.rows.join(
            self.study_id, name, code_version(), self.context.pool.num_workers
        )
        try:
            with heartbeat(self.rows, self._me):
                yield
        except BrokenRunError as error:
            error.add_note(self._standing())
            raise
        finally:
            if len(self.running):
                self.context.pool.cancel_all()
                self.running.clear()
            self.rows.requeue([self._me])
            self.rows.end_drivers([self._me])

    def _standing(self) -> str:
        """How many trials are finished and which were interrupted, for the error message."""
        cut_off = sorted(self.running.numbers)
        listed = f"{'trials' if len(cut_off) > 1 else 'trial'} {', '.join(map(str, cut_off))}"
        lost = f"{listed} ran and will begin again" if cut_off else "none was running"
        return f"{self.trials.finished} of {self.budget.trials} trials are finished; {lost}"

    def _load(self) -> None:
        """Read the study's trials, and requeue those of dead drivers."""
        self._seen_command = self.rows.news_of(self.study_id).command
        if not self.rows.shared:
            # We hold the lock of the database: every other driver, of any study, is gone.
            others = self.rows.drivers_of(None, running=True)
            self._requeue([driver for driver in others if driver.id != self._me])
        drivers = self.rows.drivers_of(self.study_id, running=True)
        self._others = len(drivers) - 1
        self._retry_failed(drivers)
        self.trials.note_all(self.rows.trials_of(self.study_id))
        self.queue.load(alone=not self._others)
        self._grow()
        self._take_wishes()
        if self.trials.finished < self.budget.trials:
            await_workers(self.context.pool, self.context.progress, self._stops)
        self.context.progress.phase(TRIALS, self.budget.trials, self.trials.finished)
        self._begun = time.monotonic()

    def _retry_failed(self, drivers: Sequence[DriverRecord]) -> None:
        """Queue what failed in earlier runs again; of drivers that begin together one does."""
        now = time.time()
        alive = [driver.id for driver in drivers if now - driver.beat_at < LEASE_S]
        if self.keep_failed or self._me != min(alive, default=self._me):
            return
        count = self.rows.retry_failed(self.study_id, self.budget.trials)
        if count:
            told = f"{count} failed trial{'s' if count > 1 else ''}"
            self.context.progress.message(f"{told} will be tried again (--keep-failed: not)")
            self.rows.add_event(self.study_id, "retried", data={"trials": count})

    def _stops(self) -> bool:
        return self.budget.out_of_time or self.control.stop.is_set()

    def _loop(self) -> str | None:
        while True:
            reason = self._look_around()
            if reason is not None:
                return reason
            if self.trials.finished >= self.budget.trials:
                return None
            before = self.trials.finished
            self.queue.tell()
            moved = self._fill() | self._begin()
            if len(self.running):
                self._collect()
            elif not moved and self.trials.finished == before:
                if not self.trials.unfinished:
                    if self.queue.exhausted:
                        return SPACE_EXHAUSTED
                    if self.queue.out_of_patience:
                        return self._out_of_patience()
                self.control.stop.wait(_IDLE_S)  # others run what is left, or the study is paused

    def _out_of_patience(self) -> str:
        if self.budget.patience != AUTO_PATIENCE:
            return f"{OUT_OF_PATIENCE} in {self.budget.patience} trials"
        if "size" in self.queue.sampler.objective.minimize:
            return f"the smallest size is bracketed, and {SETTLED} more trials are not smaller"
        return f"{OUT_OF_PATIENCE} in {PATIENT} trials"

    # what runs -----------------------------------------------------------------------------------

    @property
    def _capacity(self) -> int:
        """Trials in the pool at a time: one a worker, and some that wait for a free one.

        Where a batch must end before the next begins, other drivers find nothing in reserve here.
        """
        workers = self.context.pool.num_workers
        shares = self._others and self.queue.sampler.spec.needs_history
        return workers + (0 if shares else max(3, workers // 4))

    @property
    def _all_busy(self) -> bool:
        """Whether more trials are in the pool than workers."""
        return len(self.running) > self.context.pool.num_workers

    def _fill(self) -> bool:
        running = len(self.running)
        return not self._paused and self.queue.fill(running=running, reserve=self._capacity)

    def _begin(self) -> bool:
        """Lease waiting trials and hand them to the pool; whether there were any."""
        running = set(self.running.numbers)
        asked = [t for t in self._tried if not t.finished and t.number not in running]
        room = max(self._capacity - len(running), len(asked))
        waiting = self.trials.unfinished - len(running)
        busy = self._all_busy and not asked
        if self._paused or busy or room <= 0 or waiting <= 0:
            return False
        claims = self.rows.claim_trials(
            self.study_id,
            self._me,
            room,
            below=self.budget.trials,
            held=self.running.ids,
            valued=self._valued,
        )
        known = self.trials.by_number
        if any(t.number not in known for t in (*claims.run, *claims.answered)):
            self._sync()  # of a batch that another driver stored
        self._ended(claims.answered)
        ends: list[Ended] = []
        for trial in claims.run:
            try:
                qconfig, scales = self.queue.ready(trial)
            except BrokenRunError:
                raise
            except CompilerError as error:
                ends.append(Ended(trial, failed(error, attempts=0)))
                continue
            self.running.begin(trial, qconfig, scales, self.budget.clock())
        self._store(ends)
        return bool(claims.run or claims.answered)

    def _collect(self) -> None:
        """Wait for what the pool finishes, and store it.

        What ends in the next ``TOGETHER_S`` is stored in the same transaction, as long as no
        worker waits for a trial.
        """
        ends: list[Ended] = []
        try:
            left = self.budget.seconds_left
            wait_s = _POLL_S if left is None else max(0.01, min(_POLL_S, left))
            finished = self.context.pool.next_finished(timeout_s=wait_s)
            until = self.budget.clock() + TOGETHER_S
            if finished is None and self.context.pool.pending == 0:
                raise SearchFailedError(
                    f"the pool lost {len(self.running)} requests without an answer",
                    where=f"trials {sorted(self.running.numbers)}",
                    fix="run the same command again; finished trials are kept",
                )
            while finished is not None:
                self._count_losses()
                end = self.running.take(finished, self.budget.clock())
                if end is not None:
                    ends.append(end)
                    if len(ends) >= self.context.pool.num_workers:
                        break
                left = until - self.budget.clock() if self._all_busy else 0.0
                finished = self.context.pool.next_finished(timeout_s=max(0.0, left))
            self._count_losses()
        finally:
            self._store(ends)

    def _count_losses(self) -> None:
        for loss in self.context.pool.take_losses():
            trial = self.running.trial_of(loss)
            if trial is not None:
                log.warning("trial %d lost its worker: %s", trial.number, loss.why)
                where = f"{loss.where}: {loss.why}"
                self.rows.count_lost_worker(self.study_id, trial, where, loss.log)

    def _store(self, ends: list[Ended]) -> None:
        """Store how trials ended; those that another driver ended before are read again."""
        if not ends:
            return
        stored = self.rows.finish_trials(self.study_id, [self._valued(end) for end in ends])
        for end in ends:
            outcome = end.outcome
            self.worker_cpu_s += (outcome.compile_cpu_s or 0.0) + (outcome.run_cpu_s or 0.0)
        self._ended(stored)
        if len(stored) < len(ends):
            known = {trial.number for trial in stored}
            others = [e.trial.number for e in ends if e.trial.number not in known]
            self.trials.note_all(self.rows.trials_by_number(self.study_id, others))

    def _valued(self, end: Ended) -> Ended:
        outcome = end.outcome
        if outcome.state != "complete" or outcome.score is None:
            return replace(end, outcome=replace(outcome, objective_values=None))
        values = self.queue.sampler.objective.values(outcome.score)
        return replace(end, outcome=replace(outcome, objective_values=values))

    def _ended(self, trials: tuple[Trial, ...] | list[Trial]) -> None:
        """Note and report trials that ended here."""
        before = self.trials.best
        for trial in self.trials.note_all(trials):
            outcome = trial.outcome
            self.finished_here += 1
            why = f": {outcome.failure}" if outcome.failure is not None else ""
            if trial.number in self.running.differing:
                self._tell_differing(trial)
            log.info("trial %d %s %s%s", trial.number, outcome.state, outcome.score or "", why)
            if self.stages is not None and trial.stage != TRIED:
                self.stages.begin(trial.stage)
            self.context.progress.advance(1, self._best_note(trial.stage))
            self._estimate()
            self.control.on_trial(trial)
        best = self.trials.best
        if best is not None and best is not before:
            name = self.context.study.name
            told = f"{name}: {self._best_note()}"
            self.control.tell(BEST, told, trial=best.number, score=dict(best.outcome.score or {}))
        self.running.forget_roundings(None if best is None else best.number)

    def _tell_differing(self, trial: Trial) -> None:
        """Say that an executor computed other integers than the reference."""
        failure = trial.outcome.failure
        told = "" if failure is None else f"{failure.what} ({failure.where}); {failure.fix}"
        self.rows.add_event(self.study_id, DIFFERS, trial=trial.number, data={"error": told})
        self.context.progress.message(f"warning: trial {trial.number}: {told}")

    def _estimate(self) -> None:
        """Say how long the other trials will take, once each worker has ended one."""
        done, left = self.finished_here, self.budget.trials - self.trials.finished
        if self._estimated or left <= 0 or done < self.context.pool.num_workers:
            return
        self._estimated = True
        took = time.monotonic() - self._begun
        seconds = took / done * left
        told = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        first = f"the first {done} took" if done > 1 else "the first took"
        self.context.progress.message(
            f"estimate: {told} for the {left} other trials, as {first} {took:.1f} s"
        )

    def _best_note(self, stage: str | None = None) -> str:
        best = self.trials.best
        if best is None or best.outcome.score is None:
            return ""
        plan, objective = self.queue.sampler.plan, self.queue.sampler.objective
        where, score = f"{stage} stage, " if stage and plan is not None else "", best.outcome.score
        found = objective.described(score)
        most = self.trials.most
        value = objective.shown(score)
        luck = ""
        if objective.decides(score) != objective.metric and value is not None and most > value:
            luck = f"; {by_option(objective.metric).formatted(most)} elsewhere is luck"
        return f"{where}best {found} (trial {best.number}{luck})"

    # others --------------------------------------------------------------------------------------

    def _look_around(self) -> str | None:
        """Check the time, commands and other drivers; the reason to stop, or None."""
        if self.budget.out_of_time:
            return TIMEOUT
        if self.control.stop.is_set():
            return STOPPED
        now = self.budget.clock()
        if now - self._looked < _POLL_S:
            return None
        self._looked = now
        self.control.check()
        news = self.rows.news_of(self.study_id)
        if news.command > self._seen_command and self._obey() == "stop":
            return STOPPED
        if self.rows.shared:
            if (self.trials.next_number, self.trials.unfinished) != (
                news.next_number,
                news.unfinished,
            ):
                self._sync()
            if now - self._watched >= BEAT_S:
                self._watched = now
                self._watch_others()
        return None

    def _obey(self) -> CommandKind | None:
        """Do what new commands say; the last one, which may be to stop."""
        kind: CommandKind | None = None
        for command in self.rows.commands_of(self.study_id, self._seen_command):
            self._seen_command = command.id
            if command.kind == TRY:
                self._take_wishes()
                continue
            kind = command.kind
            if kind == "stop":
                break
            self._paused = kind == "pause"
            state: StudyState = "paused" if self._paused else "running"
            self.rows.set_study_state(self.study_id, state)
            self.context.progress.message(f"the study is {state}, as was asked for")
        return kind

    @property
    def _tried(self) -> list[Trial]:
        """Trials that people asked for."""
        return self.trials.batch(TRIED_BATCH)

    def _take_wishes(self) -> None:
        """Store what people want tried as the next trials, the budget notwithstanding."""
        for event in wishes(self.rows, self.study_id):
            if event.id in self._seen_wishes:
                continue
            self._seen_wishes.add(event.id)
            try:
                while (new := self.queue.tried((event.data or {})["qconfig"])) is not None:
                    try:
                        self.trials.note_all(self.rows.add_trials(self.study_id, [new]))
                    except ConflictError:
                        self.queue.read_new()  # another driver stored it, or a batch, first
                        continue
                    self.queue.sampler.add_pending([self.trials.by_number[new.number]])
                    self.context.progress.message(f"trial {new.number} is one that was asked for")
            except BrokenRunError:
                raise
            except CompilerError as error:
                self.context.progress.message(f"warning: cannot be tried: {error}")
        self._grow()

    def _grow(self) -> None:
        """Let the budget hold what people asked for."""
        numbers = [trial.number + 1 for trial in self._tried if not trial.finished]
        self.budget.trials = max(self.budget.trials, max(numbers, default=0))

    def _watch_others(self) -> None:
        """Find drivers that died, and count those of this study that live."""
        # Of all studies: the same work as ours is not begun while a dead driver holds it.
        running = self.rows.drivers_of(None, running=True)
        drivers = [driver for driver in running if driver.id != self._me]
        dead = set(self.leases.expired(drivers))
        self._requeue([driver for driver in drivers if driver.id in dead])
        self._others = sum(
            driver.study_id == self.study_id for driver in drivers if driver.id not in dead
        )

    def _sync(self) -> None:
        """Take in what other drivers stored and finished."""
        trials, before = self.trials, self.trials.finished
        self.queue.read_new()
        ended = set(trials.unfinished_numbers()) - self.rows.unfinished(self.study_id)
        ended -= set(self.running.numbers)
        if ended:
            found = self.rows.trials_by_number(self.study_id, sorted(ended))
            trials.note_all(found)
        if trials.finished > before:
            self.context.progress.advance(trials.finished - before, self._best_note())

    def _requeue(self, dead: Sequence[DriverRecord]) -> None:
        """Queue the trials of dead drivers again, with the same parameters."""
        for study_id in {driver.study_id for driver in dead}:
            ids = [driver.id for driver in dead if driver.study_id == study_id]
            requeued = self.rows.requeue(ids)
            self.rows.end_drivers(ids)
            if requeued:
                log.warning("%d trials of %d dead drivers wait again", requeued, len(ids))
                self.rows.add_event(study_id, "requeued", data={"trials": requeued})
