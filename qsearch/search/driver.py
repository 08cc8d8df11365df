"""The loop: propose batches, store them, run their trials, tell the sampler, repeat.

A batch is stored whole before any of it runs, and proposed from the trials of earlier batches
only. So a driver may be killed at any moment: the rows say which trials are finished, the others
are run again with the same parameters, and the next batch is the one it would have been. Samplers
that look at no history do not wait for a batch to end.

Several drivers may work on one study of a PostgreSQL store. Each leases trials, sends heartbeats
while it lives, and takes over what a dead driver left (``leases``); equal histories propose equal
batches, so the second driver to store a batch finds it there. ``Orders`` carries out what people
ask of a running study: stop, pause, resume, try a configuration.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from compiler.errors import CompilerError
from qsearch.errors import SearchFailedError
from qsearch.search.context import TIMEOUT, Budget, Control, StudyContext
from qsearch.search.known_trials import KnownTrials
from qsearch.search.running_trials import RunningTrials, await_workers
from qsearch.search.scoring import failed
from qsearch.search.stages import StageTracker
from qsearch.search.trial_news import TrialNews
from qsearch.search.trial_queue import TrialQueue
from qsearch.search.trying import TRY, wishes
from qsearch.store.leases import LeaseMonitor, OtherDrivers, heartbeat
from qsearch.store.records import TRIED_BATCH, Ended, NewTrial, StudyState, Trial
from workers.errors import BrokenRunError
from workers.process import code_version

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

TOGETHER_S: Final = 0.25
"""Seconds that a trial that ended may wait for others to be stored with it."""

log = logging.getLogger("qsearch.search.driver")


SPACE_EXHAUSTED: Final = "space exhausted"
STOPPED: Final = "stopped on request"
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
        control: callbacks of trials, and events that stop the search.
        stages: records which stage has begun.
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
    news: TrialNews = field(init=False)
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on them."""
    _others: OtherDrivers = field(init=False)
    _orders: Orders = field(init=False)
    _looked: float = -math.inf

    def __post_init__(self) -> None:
        asked = self.budget, self.control, self.stages
        self.news = TrialNews(self.context, self.queue, *asked)
        self._others = OtherDrivers(self.rows, self.study_id, self.leases)
        self._orders = Orders(self.context, self.queue, self.budget)

    @property
    def rows(self) -> Repository:
        """The store."""
        return self.context.repository

    @property
    def study_id(self) -> int:
        """Id of the study's row."""
        return self.context.study.id

    @property
    def trials(self) -> KnownTrials:
        """Trials of the study, as they are known here."""
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
        self.queue.store([new])
        note()
        self.budget.trials = self.trials.next_number
        with self._joined():
            self._loop()

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Work on the study while the block runs."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        workers = self.context.pool.num_workers
        me = self._others.me = self.rows.join(self.study_id, name, code_version(), workers)
        try:
            with heartbeat(self.rows, me):
                yield
        except BrokenRunError as error:
            error.add_note(self._standing())
            raise
        finally:
            if len(self.running):
                self.context.pool.cancel_all()
                self.running.clear()
            self.rows.requeue([me])
            self.rows.end_drivers([me])

    def _standing(self) -> str:
        """Count the finished trials and name the interrupted ones, for the error message."""
        cut_off = sorted(self.running.numbers)
        listed = f"{'trials' if len(cut_off) > 1 else 'trial'} {', '.join(map(str, cut_off))}"
        if cut_off:
            lost = f"{listed} ran and will begin again"
        else:
            lost = "none was running"
        return f"{self.trials.finished} of {self.budget.trials} trials are finished; {lost}"

    def _load(self) -> None:
        """Read the study's trials, and requeue those of dead drivers."""
        self._orders.begin()
        if self._others.meet() and not self.keep_failed:
            self._retry_failed()
        self.trials.note_all(self.rows.trials_of(self.study_id))
        self.queue.load(alone=not self._others.count)
        self._orders.take_wishes()
        if self.trials.finished < self.budget.trials:
            await_workers(self.context.pool, self.context.progress, self._stops)
        self.news.begin()

    def _retry_failed(self) -> None:
        """Queue what failed in earlier runs again; of drivers that begin together one does."""
        count = self.rows.retry_failed(self.study_id, self.budget.trials)
        if count:
            told = f"{count} failed trial{'s' if count > 1 else ''}"
            self.context.progress.message(f"{told} will be tried again (--keep-failed: not)")
            self.rows.add_event(self.study_id, "retried", data={"trials": count})

    def _stops(self) -> bool:
        return not self.budget.seconds_left or self.control.stop.is_set()

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
                        return self.news.out_of_patience()
                self.control.stop.wait(_IDLE_S)  # others run what is left, or the study is paused

    # what runs -----------------------------------------------------------------------------------

    @property
    def _capacity(self) -> int:
        """Trials in the pool at a time: one a worker, and some that wait for a free one.

        Where a batch must end before the next begins, other drivers find nothing in reserve here.
        """
        workers = self.context.pool.num_workers
        shares = self._others.count and self.queue.sampler.spec.needs_history
        return workers + (0 if shares else max(3, workers // 4))

    @property
    def _all_busy(self) -> bool:
        """True where more trials are in the pool than workers."""
        return len(self.running) > self.context.pool.num_workers

    def _fill(self) -> bool:
        running = len(self.running)
        return not self._orders.paused and self.queue.fill(running=running, reserve=self._capacity)

    def _begin(self) -> bool:
        """Lease waiting trials and hand them to the pool; whether there were any."""
        running = set(self.running.numbers)
        asked = [t for t in self._orders.tried if not t.finished and t.number not in running]
        room = max(self._capacity - len(running), len(asked))
        waiting = len(self.trials.unfinished) - len(running)
        busy = self._all_busy and not asked
        if self._orders.paused or busy or room <= 0 or waiting <= 0:
            return False
        claims = self.rows.claim_trials(
            self.study_id,
            self._others.me,
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
            wait_s = max(0.01, min(_POLL_S, self.budget.seconds_left))
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
        for trial in self.trials.note_all(trials):
            self.news.ended(trial, trial.number in self.running.differing)
        best = self.trials.best
        self.running.forget_roundings(None if best is None else best.number)

    # others --------------------------------------------------------------------------------------

    def _look_around(self) -> str | None:
        """Check the time, commands and other drivers; the reason to stop, or None."""
        if not self.budget.seconds_left:
            return TIMEOUT
        if self.control.stop.is_set():
            return STOPPED
        now = self.budget.clock()
        if now - self._looked < _POLL_S:
            return None
        self._looked = now
        self.control.check()
        news = self.rows.news_of(self.study_id)
        if self._orders.stop(news.command):
            return STOPPED
        if self.rows.shared:
            if (self.trials.next_number, len(self.trials.unfinished)) != (
                news.next_number,
                news.unfinished,
            ):
                self._sync()
            self._others.watch(now)
        return None

    def _sync(self) -> None:
        """Take in what other drivers stored and finished."""
        trials = self.trials
        before = self.trials.finished
        self.queue.read_new()
        ended = trials.unfinished - self.rows.unfinished(self.study_id)
        ended -= set(self.running.numbers)
        if ended:
            found = self.rows.trials_by_number(self.study_id, sorted(ended))
            trials.note_all(found)
        if trials.finished > before:
            self.context.progress.advance(trials.finished - before, self.news.best_note())


@dataclass(slots=True)
class Orders:
    """Commands of the store, as one driver carries them out.

    Args:
        context: the study.
        queue: stores the trials that are asked for.
        budget: grows by them.
        paused: whether no further trial may begin.
    """

    context: StudyContext
    queue: TrialQueue
    budget: Budget
    paused: bool = False
    _seen_command: int = 0
    _seen_wishes: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Leave out the commands of earlier runs."""
        news = self.context.repository.news_of(self.context.study.id)
        self._seen_command = news.command

    def stop(self, newest: int) -> bool:
        """Carry out the commands up to ``newest`` that are new; whether one says to stop."""
        if newest <= self._seen_command:
            return False
        rows = self.context.repository
        study_id = self.context.study.id
        for command in rows.commands_of(study_id, self._seen_command):
            self._seen_command = command.id
            if command.kind == TRY:
                self.take_wishes()
            elif command.kind == "stop":
                return True
            else:
                self.paused = command.kind == "pause"
                state: StudyState = "paused" if self.paused else "running"
                rows.set_study_state(study_id, state)
                self.context.progress.message(f"the study is {state}, as was asked for")
        return False

    @property
    def tried(self) -> list[Trial]:
        """Trials that people asked for."""
        return self.queue.trials.batch(TRIED_BATCH)

    def take_wishes(self) -> None:
        """Store what people want tried as the next trials, the budget notwithstanding."""
        for event in wishes(self.context.repository, self.context.study.id):
            if event.id not in self._seen_wishes:
                self._seen_wishes.add(event.id)
                try:
                    self._add((event.data or {})["qconfig"])
                except BrokenRunError:
                    raise
                except CompilerError as error:
                    self.context.progress.message(f"warning: cannot be tried: {error}")
        numbers = [trial.number + 1 for trial in self.tried if not trial.finished]
        self.budget.trials = max(self.budget.trials, max(numbers, default=0))

    def _add(self, fields: dict[str, object]) -> None:
        while (new := self.queue.tried(fields)) is not None:
            if self.queue.store([new]) is not None:
                self.context.progress.message(f"trial {new.number} is one that was asked for")
