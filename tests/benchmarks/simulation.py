"""Discrete-event simulation of drivers and workers: real store, queue, drivers; pretended trials.

Every driver is a thread. One thread runs at a time, and the clock moves on when all of them wait.
With ``charge_cpu`` the CPU time of a driver passes on the clock as well, as if each driver had a
core of its own; without it a simulation always gives the same rows.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event

from workers.pool.protocol import Finished
from workers.pool.queued_pool import Job, QueuedPool, Slot
from workers.pool.ray_cluster import ASK_EVERY_S, Shares
from workers.worker import answer


class Simulation:
    """Virtual seconds, and the threads that wait for their moment."""

    def __init__(self, charge_cpu: bool = False) -> None:
        self.cpu_s: Counter[str] = Counter()
        self._now = 0.0
        self._charge_cpu = charge_cpu
        self._waiting: list[tuple[float, int, threading.Semaphore]] = []
        self._number = 0
        self._ended = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._resumed = 0.0

    def clock(self) -> float:
        """Seconds since the simulation began, as its running thread sees them."""
        return self._now + (time.thread_time() - self._resumed if self._charge_cpu else 0.0)

    def start(self, kind: str, work: Callable[[], Any]) -> None:
        """Run ``work`` in a thread from this moment on; its CPU seconds count as of ``kind``."""
        turn = self._enqueue(self._now)

        def run() -> None:
            turn.acquire()
            self._resumed = time.thread_time()
            try:
                work()
            except BaseException as error:
                self._errors.append(error)
            finally:
                self.cpu_s[kind] += time.thread_time()
                self._hand_over()

        threading.Thread(target=run, daemon=True).start()

    def run(self) -> None:
        """Let the threads run until the last one ended."""
        self._hand_over()
        self._ended.acquire()
        if self._errors:
            raise self._errors[0]

    def sleep_until(self, when: float) -> None:
        """Let others run until this moment."""
        turn = self._enqueue(max(when, self.clock()))
        self._hand_over()
        turn.acquire()
        self._resumed = time.thread_time()

    def _enqueue(self, when: float) -> threading.Semaphore:
        turn = threading.Semaphore(0)
        self._number += 1
        heapq.heappush(self._waiting, (when, self._number, turn))
        return turn

    def _hand_over(self) -> None:
        if not self._waiting or self._errors:
            self._ended.release()
            return
        when, _, turn = heapq.heappop(self._waiting)
        self._now = max(self._now, when)
        turn.release()


@dataclass(slots=True, eq=False)
class SimulatedWorker(Slot):
    """Busy until ``end`` on the simulation's clock."""

    end: float = 0.0
    since: float = 0.0
    finished: tuple[Any, Exception | None] = (None, None)


@dataclass(slots=True)
class Cluster:
    """Workers of several pools, divided by the actor that divides a Ray cluster.

    Attributes:
        cpus: of all nodes; a worker takes one.
        busy: pool, begin and end of every trial.
        below: by pool, the longest time that it held less than its share and had work.
        shares_cpu_s: CPU time of the actor, which is a process of its own on Ray.
    """

    simulation: Simulation
    cpus: int
    shares: Shares = field(default_factory=Shares)
    held: Counter[str] = field(default_factory=Counter)
    busy: list[tuple[str, float, float]] = field(default_factory=list)
    below: dict[str, float] = field(default_factory=dict)
    most_held: int = 0
    shares_cpu_s: float = 0.0


class SimulatedPool(QueuedPool[SimulatedWorker]):
    """The queue of real pools in front of pretended workers.

    Args:
        cluster: whose CPUs the workers take.
        name: of the pool.
        wanted: workers at most.
        runner: answers requests at once.
        seconds: that a request takes on the simulation's clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        wanted: int,
        runner: Any,
        seconds: Callable[[Any], float],
    ) -> None:
        super().__init__(wanted, max_attempts=1)
        self._cluster = cluster
        self._simulation = cluster.simulation
        self._name = name
        self._runner = runner
        self._seconds = seconds
        self._running: list[tuple[float, int, SimulatedWorker]] = []
        self._may = 0
        self._next_ask = 0.0
        self._below_since: float | None = None

    def submit(
        self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False
    ) -> None:
        super().submit(tag, request, group, first)
        self._hold_share()
        self._dispatch()

    def wait_ready(self, timeout_s: float) -> int:
        self._advance(timeout_s)
        return self._num_ready

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        done = self._jobs.next_finished()
        if done is None and self.pending:
            self._advance(1.0 if timeout_s is None else timeout_s)
            done = self._jobs.next_finished()
        return done

    def close(self) -> None:
        self._jobs.clear()
        for slot in list(self._slots):
            self._end(slot)
        self._cluster.shares.leave(self._name)

    def _advance(self, timeout_s: float) -> None:
        self._hold_share()
        self._dispatch()
        until = self._simulation.clock() + timeout_s
        if self._running and self._running[0][0] < until:
            until = self._running[0][0]
        if timeout_s:
            self._simulation.sleep_until(until)
        now = self._simulation.clock()
        while self._running and self._running[0][0] <= now:
            end, _, slot = heapq.heappop(self._running)
            if slot.job is not None:
                self._cluster.busy.append((self._name, slot.since, end))
                self._done(slot, *slot.finished)
        self._hold_share()
        self._dispatch()

    def _hold_share(self) -> None:
        """As a Ray pool does: ask now and then, start workers, end idle ones that are too many."""
        now = self._simulation.clock()
        if now >= self._next_ask:
            self._next_ask = now + ASK_EVERY_S
            cluster, began = self._cluster, time.thread_time()
            self._may = cluster.shares.workers(self._name, self._count, 1.0, float(cluster.cpus))
            cluster.shares_cpu_s += time.thread_time() - began
        for slot in [s for s in self._slots if s.job is None][: len(self._slots) - self._may]:
            self._end(slot)
        held = self._cluster.held
        # What others still hold is theirs until they are done with it, as with actors of Ray.
        while len(self._slots) < self._may and sum(held.values()) < self._cluster.cpus:
            self._slots.append(SimulatedWorker(next(self._numbers), ready=True))
            held[self._name] += 1
            self._cluster.most_held = max(self._cluster.most_held, sum(held.values()))
        self._watch_share(now)

    def _watch_share(self, now: float) -> None:
        if len(self._slots) >= self._may:
            self._below_since = None
            return
        self._below_since = now if self._below_since is None else self._below_since
        below = self._cluster.below
        below[self._name] = max(below.get(self._name, 0.0), now - self._below_since)

    def _run(self, slot: SimulatedWorker, job: Job) -> None:
        slot.finished = answer(self._runner, job.request, str(slot.number))
        slot.since = self._simulation.clock()
        slot.end = slot.since + self._seconds(job.request)
        heapq.heappush(self._running, (slot.end, slot.number, slot))

    def _end(self, slot: SimulatedWorker) -> None:
        slot.job = None
        self._slots.remove(slot)
        self._cluster.held[self._name] -= 1


@dataclass(slots=True)
class Statements:
    """What went to a database: statements by their first word, and transactions that wrote."""

    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def of(self, engine: Engine) -> Any:
        """Count while the block lasts, but for the heartbeats: they follow the wall clock."""

        def count(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if threading.current_thread().name != "heartbeat":
                self.counts[statement.split(None, 1)[0]] += 1

        def commit(_c: Any) -> None:
            if threading.current_thread().name != "heartbeat":
                self.counts["COMMIT"] += 1

        event.listen(engine, "before_cursor_execute", count)
        event.listen(engine, "commit", commit)
        try:
            yield self
        finally:
            event.remove(engine, "before_cursor_execute", count)
            event.remove(engine, "commit", commit)
