"""Start or join a Ray cluster: quiet, bounded, with authentication; ray comes as an argument."""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from compiler.errors import raised_as
from workers.errors import LostClusterError, WorkerError
from workers.pool.protocol import WorkerSize

JOIN_S = 30.0
"""Seconds that nodes of a cluster may take to join it, before it is called too small."""

SILENCE_S = 30.0
"""Seconds without an answer of the head after which it counts as lost; after 60 s Ray ends the
process."""
_LOOK_EVERY_S = 2.0
_LOOPBACK = "127.0.0.1"

OBJECT_STORE_BYTES = 300 << 20
"""Shared memory of a local cluster: models, reference outputs, merged statistics."""

_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def start(ray: Any, num_workers: int, size: WorkerSize) -> None:
    """Start a cluster on this machine with room for the workers; see ``ray_head``."""
    with _on_loopback(ray):
        # Without an address Ray joins whatever `ray start` began on this machine last.
        ray.init(
            address="local",
            num_cpus=math.ceil(num_workers * size.cpus),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **_QUIET,
        )


def connect(ray: Any, address: str, own: bool = False) -> None:
    """Join the cluster at ``address``.

    Args:
        own: ``start`` began it.
    Raises:
        WorkerError: there is no cluster, or it refuses this process.
    """
    with (
        raised_as(
            WorkerError,
            f"cannot connect to Ray at {address}",
            ConnectionError,
            RuntimeError,
            ValueError,
            ray.exceptions.RayError,
            fix="check the address, and that RAY_AUTH_MODE=token and the cluster's token "
            "(RAY_AUTH_TOKEN or ~/.ray/auth_token) are set here too",
        ),
        _on_loopback(ray) if own else contextlib.nullcontext(),
    ):
        ray.init(address=address, **_QUIET)
    _keep_stdout_clean(ray)


def await_resources(
    ray: Any, num_workers: int, size: WorkerSize, address: str | None, stopping: threading.Event
) -> None:
    """Refuse more workers than a cluster of this machine has room for: Ray would wait for ever, in
    silence.

    A cluster that is joined may grow: its autoscaler brings nodes for the workers that wait, which
    is said where there is no room for all after ``JOIN_S``.

    Raises:
        WorkerError: the cluster of this machine has fewer CPUs, or less memory.
    """
    each = {"CPU": size.cpus, "memory": size.memory_bytes or 0}

    def told() -> tuple[str, int]:
        """Name what there is too little of, in words, and for how many workers it is enough."""
        total = ray.cluster_resources()
        for name, amount in each.items():
            if (has := total.get(name, 0.0)) < num_workers * amount:
                unit = "bytes of memory" if name == "memory" else f"{name}s"
                need = f"{num_workers} workers need {num_workers * amount:g} {unit}"
                return f"{need}, the Ray cluster has {has:g}", int(has / amount)
        return "", num_workers

    lack, room = told()
    if lack and address is None:
        fix = f"use --workers {max(room, 1)} or add nodes"
        raise WorkerError(lack, where="address local", fix=fix)
    if lack:

        def tell_later() -> None:
            if not stopping.wait(JOIN_S) and (lack := told()[0]):
                _log.warning("%s: the others start when nodes join", lack)

        threading.Thread(target=tell_later, name="ray room", daemon=True).start()


ASK_EVERY_S = 2.0
"""Seconds between a pool's questions for its share of a cluster that others use too."""
TURN_S = 300.0
"""Length of a turn where there are more pools than CPUs. It is long because a worker takes seconds
to start and has to fetch the model and the statistics."""
_GONE_S = 30.0
"""A pool that has not asked for so many seconds counts as closed."""


class Shares:
    """Runs as one actor of a cluster: divides its CPUs evenly among the pools that ask.

    Where there are more pools than CPUs, they take turns: every ``TURN_S`` one pool gives its CPUs
    to the one that has waited longest, so that no study waits until another one ends.

    Nothing is lost when the actor ends with the driver that started it: another driver starts it
    anew, and every pool asks again.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, float, float]] = {}

    def workers(self, pool: str, wanted: int, cpus: float, total: float) -> int:
        """Return the number of workers that a pool may have now.

        Args:
            pool: any name of its own.
            wanted: its workers.
            cpus: of each worker.
            total: CPUs of the cluster.
        """
        now = time.monotonic()
        self._asked[pool] = (wanted, cpus, now)
        self._asked = {p: ask for p, ask in self._asked.items() if now - ask[2] < _GONE_S}
        asks = [(p, ask[:2]) for p, ask in self._asked.items()]
        if len(asks) == 1 or total < cpus:
            # Workers that wait for a place are what an autoscaler brings nodes for.
            if len(asks) == 1:
                return wanted
            return 1
        given = divided(dict(asks), total)
        if not all(given.values()):
            turn = int(now / TURN_S) % len(asks)
            given = divided(dict(asks[turn:] + asks[:turn]), total)
        return given[pool]

    def leave(self, pool: str) -> None:
        """The pool is closed."""
        self._asked.pop(pool, None)


def divided(asked: Mapping[str, tuple[int, float]], total: float) -> dict[str, int]:
    """Workers of every pool: one after another goes to the pool with the fewest CPUs (max-min).

    Args:
        asked: workers and CPUs of each, by pool; earlier ones win ties.
        total: CPUs to divide.
    """
    given = dict.fromkeys(asked, 0)
    left = total
    waiting = [(0.0, place, pool) for place, pool in enumerate(asked)]
    while waiting:
        held, place, pool = heapq.heappop(waiting)
        wanted, cpus = asked[pool]
        if given[pool] < wanted and cpus <= left + 1e-9:
            given[pool] += 1
            left -= cpus
            heapq.heappush(waiting, (held + cpus, place, pool))
    return given


class Share:
    """Share of a cluster that one pool may hold; asks without waiting for the answer.

    Args:
        ray: connected.
        wanted: workers of the pool.
        cpus: of each worker.
    """

    def __init__(self, ray: Any, wanted: int, cpus: float) -> None:
        self._ray = ray
        self._wanted = wanted
        self._cpus = cpus
        self._name = f"{ray.get_runtime_context().get_job_id()}-{id(self):x}"
        self._class = ray.remote(num_cpus=0)(Shares).options(
            name="shares", namespace="qsearch", get_if_exists=True
        )
        self._actor: Any = None
        self._call: Any = None
        self._next = 0.0
        self._allowed = 1

    def workers(self) -> int:
        """Return the number of workers of the last answer; 1 before the first one."""
        now = time.monotonic()
        try:
            if self._call is None and now >= self._next:
                self._next = now + ASK_EVERY_S
                self._actor = self._actor or self._class.remote()
                total = self._ray.cluster_resources().get("CPU", 0.0)
                ask = (self._name, self._wanted, self._cpus, total)
                self._call = self._actor.workers.remote(*ask)
            if self._call is not None and self._ray.wait([self._call], timeout=0.0)[0]:
                call = self._call
                self._call = None
                self._allowed = int(self._ray.get(call))
        except self._ray.exceptions.RayError:  # the actor ended with its driver
            self._actor = self._call = None
        return self._allowed

    def leave(self) -> None:
        """Give up the share."""
        if self._actor is not None:
            self._actor.leave.remote(self._name)


_log = logging.getLogger("workers.pool.ray")


class ClusterMonitor:
    """Knows whether the raylet of this machine runs and the head of the cluster answers.

    It asks the operating system, not Ray: without its raylet Ray ends the whole process as soon as
    a value goes to or comes from the object store, and a minute after the head went silent.

    Args:
        ray: connected.
        stopping: ends the thread that looks at the head.
    """

    def __init__(self, ray: Any, stopping: threading.Event) -> None:
        context = ray.get_runtime_context()
        self.head = str(context.gcs_address)
        (node,) = [n for n in ray.nodes() if n["NodeID"] == context.get_node_id()]
        self._raylet = _process_behind(node["RayletSocketName"])
        self._stopping = stopping
        self._asked: float | None = None
        self._head_ended = False
        threading.Thread(target=self._look, name="ray watch", daemon=True).start()

    def check(self) -> None:
        """Refuse to go on without the cluster; cheap enough to ask before each call of Ray.

        Raises:
            LostClusterError: the raylet of this machine ended, or the head has been silent.
        """
        asked = self._asked
        if self._raylet is not None and select.select([self._raylet], [], [], 0.0)[0]:
            what = "Ray's raylet on this machine ended, and its workers with it"
        elif self._head_ended:
            what = "the head of the Ray cluster ended (gcs_server on this machine)"
        elif asked is not None and time.monotonic() - asked > SILENCE_S:
            what = f"the head of the Ray cluster did not answer for {SILENCE_S:.0f} s"
        else:
            return
        raise LostClusterError(
            what,
            where=f"cluster {self.head}",
            fix="run the same command again: finished trials are kept. If it happens again, look "
            "for a lack of memory (dmesg), or use --pool process",
        )

    def close(self) -> None:
        """Release the raylet's descriptor."""
        if self._raylet is not None:
            os.close(self._raylet)
            self._raylet = None

    def _look(self) -> None:
        host, _, port = self.head.rpartition(":")
        while not self._stopping.wait(_LOOK_EVERY_S):
            if self._asked is None:
                self._asked = time.monotonic()
            else:
                self._asked = self._asked
            try:
                socket.create_connection((host, int(port)), timeout=_LOOK_EVERY_S).close()
                self._asked = None
            except ConnectionRefusedError:
                # A supervisor may restart a head on another machine; nothing restarts a local one.
                self._head_ended = host == _LOOPBACK
            except OSError:
                continue


def _process_behind(path: str) -> int | None:
    """A descriptor of the process that listens at a Unix socket, readable once it ended; None
    where the system does not tell."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            packed = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
        return os.pidfd_open(struct.unpack("3i", packed)[0])
    except (OSError, AttributeError):  # another system, or the process of another container
        return None


@contextlib.contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """A cluster of one machine listens on 127.0.0.1 only.

    Ray replaces a loopback address that it is given by the machine's own, and then listens on every
    interface. It keeps the loopback on systems where it takes clusters to be of one machine, which
    this constant stands for; an environment variable sets it while ray is imported, too late here.
    """
    constants: Any = getattr(getattr(ray, "_private", None), "ray_constants", None)
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        _log.warning("this version of Ray listens on every interface of the machine")
        yield
        return
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _keep_stdout_clean(ray: Any) -> None:
    """Ray prints notes of its daemons on stdout, where ``--json`` has its one line.

    No public switch reaches them (``log_to_driver`` does not); ray's own debugger uses this one.
    Lost workers are in our log all the same.
    """
    module: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(module, "_worker_logs_enabled"):
        module._worker_logs_enabled = False
