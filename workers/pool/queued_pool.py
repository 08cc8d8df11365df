"""QueuedPool: what pools do alike: queued jobs, stored values, waiting, deadlines, lost workers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pkgutil
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from workers.errors import LostWorkerError, WorkerError
from workers.messages import Handle
from workers.object_store import content_key, find
from workers.pool.protocol import Finished, Loss, WorkerSize
from workers.process import code_version
from workers.user_code import UserCode
from workers.worker import Fetch, RequestRunner, answer

RunnerFactory = Callable[[Fetch], RequestRunner]

DEFAULT_RUNNER = "workers.worker:Worker"
"""Import path of the factory that each worker calls once."""

MAX_ATTEMPTS = 2
"""Runs of a request that ends its worker by its own fault."""
REST_S = 0.25
LONGEST_REST_S = 30.0
"""Longest rest in seconds of a group whose workers were taken away again and again: the second time
``REST_S``, then twice as long each time."""
STEAL_FROM = 2
"""Jobs that a group must have left before a worker of another group takes one."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request and the attempt it is on, 1 at first.

    Attributes:
        group: requests of one group share what a worker prepares for them (a compiled candidate).
    """

    tag: Hashable
    request: Any
    group: Hashable
    attempt: int = 1

    def __str__(self) -> str:
        return f"request {self.tag!r} ({type(self.request).__name__}), attempt {self.attempt}"


class JobQueue:
    """Queued jobs by group, and finished ones.

    A worker stays with its group. Without jobs of that group it takes the oldest group that no
    worker has begun, and then a job of the group with the most jobs left (work stealing). Another
    worker has to prepare for it: a group keeps its last job, and all that take less time than the
    last worker took that prepared. A step takes constant time, or looks at the groups that workers
    have begun, and at the jobs that rest.
    """

    def __init__(self, max_attempts: int) -> None:
        if max_attempts < 1:
            raise WorkerError(f"max_attempts {max_attempts}", fix="at least 1")
        self._max_attempts = max_attempts
        # Group → its jobs, the oldest group first. A dict would step over all that were deleted.
        self._waiting: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._group_of: dict[Hashable, Hashable] = {}  # tag of a job that waits → its group
        self._holders: dict[Hashable, Hashable] = {}  # worker → its group
        self._held: Counter[Hashable] = Counter()  # group → how many workers are with it
        self._lost: Counter[Hashable] = Counter()  # group → its workers that were taken away
        self._faults: Counter[Hashable] = Counter()  # group → workers that it ended itself
        self._resting: dict[Hashable, tuple[float, Job]] = {}  # tag → when it waits again, and it
        self._begun: dict[Hashable, tuple[float, bool]] = {}  # worker → since when; it prepares
        self._took: dict[bool, float] = {}  # seconds of the last job, with preparing and without
        self._losses: list[Loss] = []
        self.finished: deque[Finished] = deque()
        """Ended but not yet reported."""

    def __len__(self) -> int:
        return len(self._group_of) + len(self._resting)

    def add(self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False) -> None:
        """Queue a request; see ``QueuedPool.submit``."""
        job = Job(tag, request, tag if group is None else group)
        self._jobs_of(job).append(job)
        if first:
            self._waiting.move_to_end(job.group, last=False)

    def _jobs_of(self, job: Job) -> deque[Job]:
        """Return the queue in which the job waits."""
        self._group_of[job.tag] = job.group
        return self._waiting.setdefault(job.group, deque())

    def take(self, worker: Hashable = None) -> Job | None:
        """The job that ``worker`` runs next; None where it should stay idle."""
        if self._resting:
            self._wake()
        group = self._group_for(worker)
        if group is None:
            return None
        prepares = worker not in self._holders or self._holders[worker] != group
        if prepares:
            self.release(worker)
            self._holders[worker] = group
            self._held[group] += 1
        job = self._waiting[group].popleft()
        self._group_of.pop(job.tag, None)
        self._forget_empty(group)
        self._begun[worker] = time.monotonic(), prepares
        return job

    def _group_for(self, worker: Hashable) -> Hashable | None:
        own = self._holders.get(worker)
        if own in self._waiting:
            return own
        fresh = next((group for group in self._waiting if not self._held[group]), None)
        if fresh is not None:
            return fresh
        group = max(self._waiting, key=lambda group: len(self._waiting[group]), default=None)
        if group is not None and self._is_worth(len(self._waiting[group])):
            return group
        return None

    def _is_worth(self, jobs: int) -> bool:
        """Return whether a worker should prepare for the jobs of a group that another one holds."""
        known = len(self._took) == 2
        return jobs >= STEAL_FROM and not (known and jobs * self._took[False] < self._took[True])

    def _forget_empty(self, group: Hashable) -> None:
        if not self._waiting[group]:
            del self._waiting[group]

    def release(self, worker: Hashable) -> None:
        """The worker is gone; its group may be begun by another."""
        self._begun.pop(worker, None)
        if worker not in self._holders:
            return
        group = self._holders.pop(worker)
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]

    def done(self, job: Job, result: Any, error: Exception | None, worker: Hashable = None) -> None:
        """A job ended."""
        since, prepared = self._begun.pop(worker, (0.0, False))
        if since and (job.group in self._waiting or not prepared):
            self._took[prepared] = time.monotonic() - since
        self.finished.append(Finished(job.tag, result, error, job.attempt))

    def lost(
        self, job: Job, where: str, why: str, log: str | None = None, own_fault: bool = False
    ) -> None:
        """The worker of a job died: try again, as often as it takes.

        Only a group that ended ``max_attempts`` workers by its own fault is given up.
        """
        self._losses.append(Loss(job.tag, where, why, log))
        again = dataclasses.replace(job, attempt=job.attempt + 1)
        counts = self._faults if own_fault else self._lost
        counts[job.group] += 1
        if not own_fault and self._lost[job.group] > 1:
            rest_s = min(REST_S * 2.0 ** min(self._lost[job.group] - 2, 30), LONGEST_REST_S)
            self._resting[job.tag] = time.monotonic() + rest_s, again
        elif self._faults[job.group] < self._max_attempts:
            self._jobs_of(again).appendleft(again)
        else:
            error = LostWorkerError(
                f"{job} ended its worker: {why}, as {self._faults[job.group]} times in all",
                where=where,
                fix="the configuration may need more memory than a worker has; lower the number "
                "of workers, or see its log with `qsearch show`",
            )
            self.finished.append(Finished(job.tag, None, error, job.attempt))

    def _wake(self) -> None:
        """Let the jobs wait again that have rested."""
        now = time.monotonic()
        for tag, (at, job) in list(self._resting.items()):
            if now >= at:
                del self._resting[tag]
                self._jobs_of(job).appendleft(job)

    def take_losses(self) -> list[Loss]:
        losses = self._losses
        self._losses = []
        return losses

    def drop(self, tags: Collection[Hashable]) -> None:
        for tag in tags:
            self._resting.pop(tag, None)
            if tag in self._group_of:
                group = self._group_of.pop(tag)
                kept = (job for job in self._waiting[group] if job.tag != tag)
                self._waiting[group] = deque(kept)
                self._forget_empty(group)

    def next_finished(self) -> Finished | None:
        """The job that ended first and was not reported yet."""
        if self.finished:
            return self.finished.popleft()
        return None

    def clear(self) -> None:
        """Forget everything but losses that were not reported."""
        for jobs in (self._waiting, self._group_of, self._holders, self._held, self._resting):
            jobs.clear()
        self._lost.clear()
        self._faults.clear()
        self.finished.clear()


def with_handles(request: Any, change: Callable[[Handle], Handle]) -> Any:
    """The request with what ``change`` gives for every handle in it and in its records."""
    if isinstance(request, Handle):
        return change(request)
    if not dataclasses.is_dataclass(request) or isinstance(request, type):
        return request
    fields = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    changed = {name: with_handles(value, change) for name, value in fields.items()}
    new = {name: value for name, value in changed.items() if value is not fields[name]}
    if new:
        return dataclasses.replace(request, **new)
    return request


FAILED_STARTS = 3
"""Workers that may die in a row before they have started."""
_POLL_S = 1.0


@dataclass(slots=True, eq=False)
class Slot:
    """One worker of a pool.

    Attributes:
        number: unique in the pool; the worker that replaces a dead one has another.
        ready: it has started.
        job: what it runs; None while it is idle or starts.
        deadline: monotonic seconds at which it counts as dead.
    """

    number: int
    ready: bool = False
    job: Job | None = None
    deadline: float = math.inf


S = TypeVar("S", bound=Slot)


class QueuedPool(ABC, Generic[S]):
    """Runs requests on workers, one at a time per worker.

    Requests of one group go to one worker while there are others to do, and are shared when there
    are not. A request whose worker dies is run again on another, as often as workers are taken
    away; a group that ends ``max_attempts`` workers by its own fault (a crash, no memory, no answer
    in time) ends with a LostWorkerError. An exception in the request itself is not retried.

    Args:
        num_workers: workers at the same time.
        max_attempts: runs of a request that ends its worker, before it ends with LostWorkerError.
        request_timeout_s: a worker busy longer is killed and counts as dead; None waits for ever.
        runner: import path of what each worker runs.
        size: what each worker may use.
        code: modules that a worker imports before its first request.
    Raises:
        WorkerError: a number below 1.
    """

    def __init__(
        self,
        num_workers: int,
        max_attempts: int = MAX_ATTEMPTS,
        request_timeout_s: float | None = None,
        runner: str = DEFAULT_RUNNER,
        size: WorkerSize | None = None,
        code: UserCode = (),
    ) -> None:
        if num_workers < 1:
            raise WorkerError(f"a pool of {num_workers} workers", fix="at least 1")
        self._count = num_workers
        self._request_timeout_s = request_timeout_s
        self._runner_path = runner
        self._code = code
        self._size = size or WorkerSize()
        self._jobs = JobQueue(max_attempts)
        self._values: dict[str, Any] = {}
        self._slots: list[S] = []
        self._numbers = itertools.count(1)
        self._failed_starts = 0

    @property
    def num_workers(self) -> int:
        """Workers that run at the same time."""
        return self._count

    @property
    def pending(self) -> int:
        """Requests queued, running, or ended and not reported."""
        running = sum(slot.job is not None for slot in self._slots)
        return len(self._jobs) + running + len(self._jobs.finished)

    def put(self, value: Any) -> Handle:
        """Store a large value once for all workers; the handle may stand for it in a request."""
        handle = Handle(content_key(value))
        self._values[handle.key] = value
        return handle

    def submit(
        self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False
    ) -> None:
        """Queue a request; ``tag`` comes back with its result.

        Args:
            group: requests that share preparation; None is a group of its own.
            first: its group goes in front of those that wait.
        """
        self._jobs.add(tag, request, group, first)
        self._advance(0.0)

    def wait_ready(self, timeout_s: float) -> int:
        """Workers that have started; waits for the first, at most ``timeout_s`` seconds.

        Raises:
            WorkerError: workers cannot be started, or run other code than this process.
        """
        end = time.monotonic() + timeout_s
        left = timeout_s
        while not self._num_ready:
            self._advance(min(left, _POLL_S))
            left = end - time.monotonic()
            if left <= 0:
                break
        return self._num_ready

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        """The next request that ended, or None after ``timeout_s`` seconds.

        None at once when nothing is pending.

        Raises:
            WorkerError: workers cannot be started, or run other code than this process.
        """
        if timeout_s is None:
            end = None
        else:
            end = time.monotonic() + timeout_s
        while True:
            done = self._jobs.next_finished()
            if done is not None or self.pending == 0:
                return done
            if end is None:
                left = _POLL_S
            else:
                left = max(0.0, end - time.monotonic())
            self._advance(min(left, _POLL_S))
            if end is not None and time.monotonic() >= end:
                return self._jobs.next_finished()

    def take_losses(self) -> list[Loss]:
        """Workers that died since the last call."""
        return self._jobs.take_losses()

    def drop(self, tags: Collection[Hashable]) -> None:
        """Forget queued requests; those that run go on, and end as usual."""
        self._jobs.drop(tags)

    def give_back(self, finished: Iterable[Finished]) -> None:
        """Return results that belong to another caller; ``next_finished`` gives them again."""
        self._jobs.finished.extend(finished)

    @property
    def _num_ready(self) -> int:
        return sum(slot.ready for slot in self._slots)

    @abstractmethod
    def close(self) -> None:
        """Release every worker; idempotent."""

    @abstractmethod
    def _advance(self, timeout_s: float) -> None:
        """Hand out jobs, wait for news of the workers, take them in."""

    @abstractmethod
    def _run(self, slot: S, job: Job) -> None:
        """Send a job to an idle worker."""

    @abstractmethod
    def _end(self, slot: S) -> None:
        """Kill a worker and forget it."""

    def _dispatch(self) -> None:
        """Give every idle worker a job."""
        for slot in list(self._slots) if len(self._jobs) else ():
            if not slot.ready or slot.job is not None:
                continue
            slot.job = self._jobs.take(slot.number)
            if slot.job is not None:
                timeout_s = self._request_timeout_s
                if timeout_s is None:
                    slot.deadline = math.inf
                else:
                    slot.deadline = time.monotonic() + timeout_s
                self._run(slot, slot.job)

    def _done(self, slot: S, result: Any, error: Exception | None) -> None:
        """The worker answered its job."""
        job = slot.job
        slot.job = None
        slot.deadline = math.inf
        # While some workers answer, the pool does not give up because others fail to start.
        self._failed_starts = 0
        if job is not None:
            self._jobs.done(job, result, error, slot.number)

    def _lost(self, slot: S, why: str, log: str | None, own_fault: bool) -> None:
        """The worker of a job died: the job is tried again, or ends with LostWorkerError."""
        job = slot.job
        slot.job = None
        self._jobs.release(slot.number)
        if job is not None:
            self._jobs.lost(job, str(slot), why, log, own_fault)

    def _greeted(self, slot: S, version: str, fix: str) -> None:
        """Take in that a worker is ready.

        Raises:
            WorkerError: it runs another version of the code.
        """
        if version != code_version():
            raise WorkerError(
                f"{slot} runs other code than the driver",
                where=f"worker: {version}; driver: {code_version()}",
                fix=fix,
            )
        slot.ready = True
        slot.deadline = math.inf
        self._failed_starts = 0

    def _count_failed_start(self, told: str, where: str, fix: str) -> None:
        """Note that a worker ended before it was ready.

        Raises:
            WorkerError: so did ``FAILED_STARTS`` in a row.
        """
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            raise WorkerError(f"{FAILED_STARTS} {told}", where=where, fix=fix)

    def _late(self) -> list[S]:
        """Workers whose deadline has passed."""
        now = time.monotonic()
        return [slot for slot in self._slots if now > slot.deadline]

    def cancel_all(self) -> None:
        """Drop queued requests and stop running ones: other workers take the place of busy ones."""
        self._jobs.clear()
        for slot in list(self._slots):
            if slot.job is not None:
                slot.job = None
                self._end(slot)


WorkerPool = QueuedPool[Any]
"""Any of the pools."""


class InlinePool(QueuedPool[Slot]):
    """The pool "inline": for tests, small models and debuggers.

    Args:
        runner: factory of what runs the requests, or its import path.
    """

    def __init__(self, runner: RunnerFactory | str = DEFAULT_RUNNER) -> None:
        super().__init__(num_workers=1, max_attempts=1)
        if isinstance(runner, str):
            found = pkgutil.resolve_name(runner)
        else:
            found = runner
        self._factory: RunnerFactory = found
        self._runner: RequestRunner | None = None

    def submit(
        self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False
    ) -> None:
        """Queue a request, which runs when its result is asked for."""
        self._jobs.add(tag, request, group, first)

    def wait_ready(self, timeout_s: float) -> int:
        """1, at once."""
        return 1

    def close(self) -> None:
        """Forget the runner, its caches and stored values."""
        self._jobs.clear()
        self._values.clear()
        self._runner = None

    def _advance(self, timeout_s: float) -> None:
        """Run the next request; the timeout cannot interrupt it."""
        job = self._jobs.take()
        if job is not None:
            self._run(Slot(0), job)

    def _run(self, slot: Slot, job: Job) -> None:
        if self._runner is None:
            self._runner = self._factory(functools.partial(find, self._values))
        self._jobs.done(job, *answer(self._runner, job.request, "this process"))

    def _end(self, slot: Slot) -> None:
        """There is no worker to end."""
