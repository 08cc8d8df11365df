"""RayPool: workers are Ray actors, on this machine or a cluster. The only file that imports ray.

Actors restart by themselves (``max_restarts=-1``) but requests are never silently re-run
(``max_task_retries=0``): a lost worker is seen here, counted and the request queued again. One
request is in flight per actor, which is the back-pressure. Source of the settings: Ray 2.60
measured; see the README of this package.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from workers.errors import LostClusterError, WorkerError
from workers.messages import Handle
from workers.pool.endings import inquest, note_crash, oom_kills
from workers.pool.protocol import WorkerSize
from workers.pool.queued_pool import (
    Job,
    QueuedPool,
    Slot,
    with_handles,
)
from workers.pool.ray_cluster import (
    ClusterMonitor,
    Share,
    await_resources,
    connect,
    start,
)
from workers.process import code_version, log_tail, python_path
from workers.user_code import UserCode
from workers.worker import Answer, answer, with_user_code

START_TIMEOUT_S = 180.0
"""Seconds that Ray may take to start or connect, and an actor to answer its first call."""

NODE_S = 900.0
"""Seconds that a joined cluster may be without a worker: its autoscaler brings nodes."""
_INQUEST_S = 15.0
"""Seconds that the node of a dead worker may take to tell its end; a node that is gone does not."""
_RESTART_PAUSE_S = 0.2
_STOP_TIMEOUT_S = 4.0
_STARTED = "cluster at "

_log = logging.getLogger("workers.pool.ray")


def _import_ray() -> Any:
    # Ray 2.60 listens on every interface; without a token anybody there could run code. A process
    # without this variable is refused after 21 s with a message that does not name the reason.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


class _RayWorker:
    """Body of an actor."""

    def __init__(self, runner_path: str, code: UserCode) -> None:
        self._runner = pkgutil.resolve_name(runner_path)(_fetch_object)
        if code:
            self._runner = with_user_code(self._runner, code)
        self._where = f"Ray actor, pid {os.getpid()}"
        self._log = os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
        note_crash(self._log)

    def hello(self) -> tuple[str, int, str, str, int]:
        """Code version, process id, the file that Ray writes our stderr to, the node, and how often
        memory was lacking there."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return code_version(), os.getpid(), self._log, node, oom_kills()

    def run(self, request: Any) -> Answer:
        """Answer one request; exceptions come back as values, so that Ray wraps none."""
        return answer(self._runner, request, self._where)


def _fetch_object(handle: Handle) -> Any:
    import ray

    if handle.ref is None:
        raise WorkerError(f"the handle {handle.key[:12]} was put into another pool")
    try:
        return ray.get(handle.ref, timeout=START_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError as error:
        raise WorkerError(
            f"a stored value did not arrive from Ray within {START_TIMEOUT_S:.0f} s",
            where=f"handle {handle.key[:12]}",
        ) from error


@dataclass(slots=True, eq=False, kw_only=True)
class _Actor(Slot):
    """A Ray actor: the call that is in flight (a request, or its first call), and its process."""

    remote: Any
    call: Any = None
    pid: int | None = None
    log: str = ""
    node: str = ""
    oom_kills: int = 0
    restarts: int = 0

    def __str__(self) -> str:
        return f"Ray actor {self.number}" + (f" (pid {self.pid})" if self.pid else "")


@dataclass(frozen=True, slots=True)
class _Inquest:
    """A request whose worker died: where, why, and until when its node may say how."""

    job: Job
    where: str
    why: str
    until: float


class RayPool(QueuedPool[_Actor]):
    """The pool "ray". Not for use from several threads at once.

    Ray does not tell why an actor died, so its node is asked before the request is blamed or tried
    again.

    Ray starts with the first use of the pool; requests wait for it. A cluster of this machine
    starts in a process of its own (``main``).

    Args:
        address: of a running cluster ("auto", "host:port"), by default the environment variable
            RAY_ADDRESS; without both, a local one is started, or the one this process is
            connected to is used.
        start_timeout_s: for Ray to start and actors to answer.
        others: as of ``QueuedPool``; Ray sets the size aside for each actor.
    """

    def __init__(
        self,
        num_workers: int,
        address: str | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        **others: Any,
    ) -> None:
        super().__init__(num_workers, **others)
        # Ray itself would take the variable, and then refuse the options of a local cluster.
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._start_timeout_s = start_timeout_s
        self._refs: dict[str, Any] = {}
        self._ray: Any = None
        self._monitor: ClusterMonitor | None = None
        self._share: Share | None = None
        self._surplus = 0
        self._inquests: dict[Any, _Inquest] = {}
        self._last_ready = math.inf
        self._start_error: Exception | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._begun: float | None = None
        self._head: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._serve_ray, name="ray", daemon=True)

    def put(self, value: Any) -> Handle:
        """The value goes to Ray's object store with its first use."""
        handle = super().put(value)
        if handle.key in self._refs:
            del self._values[handle.key]
        return handle

    @property
    def pending(self) -> int:
        return super().pending + len(self._inquests)

    def cancel_all(self) -> None:
        self._inquests.clear()
        super().cancel_all()

    def close(self) -> None:
        """Release every actor; also ends the cluster if this pool started it."""
        self._jobs.clear()
        self._inquests.clear()
        if self._ray is not None:
            for actor in list(self._slots):
                self._end(actor)
            if self._share is not None:
                self._share.leave()
        self._refs.clear()
        self._values.clear()
        self._stopping.set()
        if self._begun is None:
            return
        if self._head is not None and not self._started.is_set():
            self._head.terminate()
        self._thread.join(_STOP_TIMEOUT_S)
        if self._head is not None:
            _end_head(self._head)

    def _serve_ray(self) -> None:
        """Start Ray, and stay until the pool is closed."""
        ours = False
        try:
            ray = _import_ray()
            ours = not ray.is_initialized()
            if ours and self._address is not None:
                connect(ray, self._address)
            elif ours:
                connect(ray, self._start_head(), own=True)
            await_resources(ray, self._count, self._size, self._address, self._stopping)
            self._monitor = ClusterMonitor(ray, self._stopping)
            if self._address is not None:
                self._share = Share(ray, self._count, self._size.cpus)
            self._ray = ray
        except Exception as error:  # handed to the caller's thread, which raises it
            self._start_error = error
        self._started.set()
        self._stopping.wait()
        if ours and self._ray is not None:
            self._ray.shutdown()
        if self._monitor is not None:
            self._monitor.close()

    def _start_head(self) -> str:
        """Start a cluster of this machine in a process of its own; its address.

        Raises:
            RuntimeError: Ray did not start there, or the pool was closed.
        """
        size = (self._count, self._size.cpus)
        # -P: a folder called workers where the user stands must not hide ours. Actors find the
        # packages that this process found, installed or not. Ctrl-C does not reach the session.
        self._head = subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.pool.ray_pool", *map(str, size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
        if self._stopping.is_set():
            self._head.terminate()
        assert self._head.stdout is not None
        last = "it said nothing"
        with self._head.stdout as told:
            for line in told:
                if line.startswith(_STARTED):
                    return line.removeprefix(_STARTED).strip()
                last = line.strip() or last
        raise RuntimeError(f"it does not start: {last}")

    def _advance(self, timeout_s: float) -> None:
        """Wait for Ray to start, or for news of the actors."""
        if self._begun is None and not self._stopping.is_set():
            self._begun = time.monotonic()
            self._thread.start()
        if self._begun is None or self._started.wait(timeout_s):
            self._step(timeout_s)
        elif time.monotonic() - self._begun > self._start_timeout_s:
            raise WorkerError(
                f"Ray did not {'answer' if self._address else 'start'} within "
                f"{self._start_timeout_s:.0f} s",
                where=f"address {self._address or 'local'}",
                fix="check the address and RAY_AUTH_MODE=token with the cluster's token, "
                "or use --pool process",
            )

    def _step(self, timeout_s: float) -> None:
        """Hand out jobs, wait for news, take them in."""
        if self._start_error is not None:
            if isinstance(self._start_error, WorkerError):
                raise self._start_error
            raise WorkerError(
                f"Ray cannot be used: {self._start_error}",
                where=f"address {self._address or 'local'}",
                fix="use --pool process to run without Ray",
            ) from self._start_error
        if self._stopping.is_set():
            raise WorkerError("the pool is closed")
        self._check_cluster()
        if self._share is None:
            allowed = self._count
        else:
            allowed = self._share.workers()
        while len(self._slots) < allowed:
            self._slots.append(self._new_actor())
        self._surplus = max(len(self._slots) - allowed, 0)
        if self._num_ready or self._last_ready == math.inf:
            self._last_ready = time.monotonic()
        self._dispatch()
        actors = {actor.call: actor for actor in self._slots if actor.call is not None}
        calls = [*actors, *self._inquests]
        if calls:
            done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0.0)
            if not done:
                done, _ = self._ray.wait(calls, num_returns=1, timeout=timeout_s)
            for call in done:
                if call in actors:
                    self._receive(actors[call])
            self._conclude(done)
        elif timeout_s:
            self._stopping.wait(min(timeout_s, _RESTART_PAUSE_S))
        for actor in self._late():
            self._overdue(actor)
        self._dispatch()

    @property
    def _patience_s(self) -> float:
        if self._address is None:
            return self._start_timeout_s
        return NODE_S

    @property
    def _given_up(self) -> bool:
        """Tell whether no worker has been there for too long."""
        return time.monotonic() - self._last_ready > self._patience_s

    def _check_cluster(self) -> None:
        """Forget the actors of a cluster that ended: they cannot be released any more."""
        assert self._monitor is not None
        try:
            self._monitor.check()
        except LostClusterError:
            self._slots.clear()
            raise

    def _new_actor(self) -> _Actor:
        options: dict[str, Any] = {"num_cpus": self._size.cpus}
        if self._size.memory_bytes is not None:
            options["memory"] = self._size.memory_bytes
        remote_class = self._ray.remote(max_restarts=-1, max_task_retries=0, **options)(_RayWorker)
        actor = _Actor(
            number=next(self._numbers), remote=remote_class.remote(self._runner_path, self._code)
        )
        self._greet(actor)
        return actor

    def _greet(self, actor: _Actor) -> None:
        actor.ready = False
        actor.call = actor.remote.hello.remote()
        actor.deadline = time.monotonic() + self._start_timeout_s

    def _dispatch(self) -> None:
        self._check_cluster()
        # Other searches wait for the CPUs of surplus workers, which end between two requests.
        idle = sorted((a for a in self._slots if a.job is None), key=lambda actor: actor.ready)
        for actor in idle[: self._surplus]:
            self._end(actor)
            self._surplus -= 1
        super()._dispatch()

    def _run(self, slot: _Actor, job: Job) -> None:
        slot.call = slot.remote.run.remote(with_handles(job.request, self._with_ref))

    def _with_ref(self, handle: Handle) -> Handle:
        if handle.key in self._values:
            self._refs[handle.key] = self._ray.put(self._values.pop(handle.key))
        return Handle(handle.key, self._refs.get(handle.key))

    def _receive(self, actor: _Actor) -> None:
        self._check_cluster()
        call = actor.call
        actor.call = None
        memory = self._ray.exceptions.OutOfMemoryError  # of Ray's own watch over it
        try:
            value = self._ray.get(call, timeout=START_TIMEOUT_S)
        except (self._ray.exceptions.RayActorError, memory) as error:
            self._died(actor, error, own_fault=isinstance(error, memory))
            return
        except self._ray.exceptions.RayError as error:
            # Not the request's own exception (those are values), not a dead actor: Ray itself.
            if actor.job is None:
                raise WorkerError(f"{actor} cannot start: {error}") from error
            self._done(actor, None, WorkerError(f"{actor.job}: {error}", where=str(actor)))
            return
        if actor.job is not None:
            self._done(actor, *value)
            return
        version, actor.pid, actor.log, actor.node, actor.oom_kills = value
        self._greeted(actor, version, "install the same qsearch on every node of the cluster")
        if actor.restarts:
            _log.warning("%s is back", actor)
        actor.restarts = 0

    def _died(self, actor: _Actor, error: Exception, own_fault: bool = False) -> None:
        actor.restarts += 1
        why = type(error).__name__
        # Calls fail every two seconds until Ray has restarted the actor; the first is logged.
        if actor.restarts == 1:
            level = logging.WARNING
        else:
            level = logging.DEBUG
        told = f" with {actor.job}" if actor.job else ""
        _log.log(level, "%s was lost (%s)%s", actor, why, told)
        if own_fault or actor.job is None:
            self._lost(actor, why, log_tail(actor.log), own_fault)
        else:
            self._ask_how(actor, actor.job, why)
        if actor.pid is None:
            self._count_failed_start(
                "Ray actors in a row did not start",
                str(error),
                "every node needs the same Python environment with qsearch in it",
            )
            self._end(actor)
            return
        if self._given_up:
            raise WorkerError(
                f"{actor} did not come back within {self._patience_s:.0f} s: {why}",
                fix="look at the cluster with `ray status`",
            )
        # Ray is restarting it; calls fail at once until it is placed.
        time.sleep(_RESTART_PAUSE_S if actor.restarts > 1 else 0.0)
        self._greet(actor)

    def _ask_how(self, actor: _Actor, job: Job, why: str) -> None:
        """Ask the node of a dead worker whether its request ended it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(actor.node, soft=False)
        ask = self._ray.remote(num_cpus=0, max_retries=0)(inquest)
        call = ask.options(scheduling_strategy=there).remote(actor.log, actor.oom_kills)
        until = time.monotonic() + _INQUEST_S
        self._inquests[call] = _Inquest(job, str(actor), why, until)
        actor.job = None
        self._jobs.release(actor.number)

    def _conclude(self, answered: list[Any]) -> None:
        """Take in what nodes said of dead workers; one that says nothing is gone itself."""
        now = time.monotonic()
        for call, case in list(self._inquests.items()):
            if call not in answered and now < case.until:
                continue
            own_fault = False
            log = None
            if call in answered:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    own_fault, log = self._ray.get(call)
            del self._inquests[call]
            why = f"{case.why}, by its own fault" if own_fault else case.why
            self._jobs.lost(case.job, case.where, why, log, own_fault)

    def _overdue(self, actor: _Actor) -> None:
        if actor.job is None:
            # Its node is gone or full; the others work, and nodes may join.
            if not self._given_up:
                actor.deadline = time.monotonic() + self._start_timeout_s
                return
            raise WorkerError(
                f"{actor} did not answer its first call within {self._patience_s:.0f} s",
                fix="look at the cluster with `ray status`; other jobs may hold its CPUs",
            )
        self._lost(actor, f"no answer within {self._request_timeout_s} s", None, True)
        self._end(actor)

    def _end(self, slot: _Actor) -> None:
        self._jobs.release(slot.number)
        self._ray.kill(slot.remote, no_restart=True)
        self._slots.remove(slot)


# The process that starts a cluster of this machine ------------------------------------------------


def main(num_workers: int, cpus: float) -> None:
    """Start Ray, tell its address, and end it when stdin closes, as it does when the driver dies.

    Ray forks its processes. At a fork OpenBLAS waits for its threads, and a product that another
    thread computes then waits for them for ever: so Ray starts where nothing computes.

    Args:
        num_workers: workers that the cluster has room for.
        cpus: of each worker.
    """
    ray = _import_ray()
    start(ray, num_workers, WorkerSize(cpus))
    print(f"{_STARTED}{ray.get_runtime_context().gcs_address}", flush=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)  # nobody reads on
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())
    sys.stdin.read()
    signal.alarm(math.ceil(_STOP_TIMEOUT_S))
    ray.shutdown()


def _end_head(head: subprocess.Popen[str]) -> None:
    assert head.stdin is not None
    head.stdin.close()
    try:
        head.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)  # agents of Ray that have not noticed yet


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
