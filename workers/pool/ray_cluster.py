"""Start or join a Ray cluster: quiet, bounded, with authentication; ray comes as an argument."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from workers.errors import LostClusterError, WorkerError
from workers.pool.protocol import WorkerSize
from workers.process import python_path

JOIN_S = 30.0
"""How long nodes of a cluster may take to join it, before it counts as too small."""
_LOOK_AGAIN_S = 0.2

SILENCE_S = 30.0
"""A head that is silent for so long is lost; after 60 s Ray ends the process."""
_LOOK_EVERY_S = 2.0
_LOOPBACK = "127.0.0.1"

OBJECT_STORE_BYTES = 300 << 20
"""Shared memory of a local cluster: models, reference outputs, merged statistics."""


def connect(ray: Any, address: str | None, num_workers: int, size: WorkerSize) -> None:
    """Join the cluster at ``address``, or start one on this machine with room for the workers.

    Raises:
        WorkerError: nobody answers there, or refuses us.
    """
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        with _import_path_in_environment(), _on_loopback(ray):
            # Without an address Ray joins whatever `ray start` began on this machine last.
            ray.init(
                address="local",
                num_cpus=math.ceil(num_workers * size.cpus),
                num_gpus=math.ceil(num_workers * size.gpus) or None,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
    else:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise WorkerError(
                f"cannot connect to Ray at {address}: {error}",
                fix="check the address, and that RAY_AUTH_MODE=token and the cluster's token "
                "(RAY_AUTH_TOKEN or ~/.ray/auth_token) are set here too",
            ) from error
    _keep_stdout_clean(ray)


def await_resources(
    ray: Any, num_workers: int, size: WorkerSize, address: str | None, stopping: threading.Event
) -> None:
    """``require_resources``, with time for the nodes of a cluster that is coming up to join it.

    Raises:
        WorkerError: after ``JOIN_S``, or when ``stopping`` is set, there is still too little.
    """
    end = time.monotonic() + (0.0 if address is None else JOIN_S)
    while True:
        try:
            return require_resources(ray, num_workers, size, address)
        except WorkerError:
            if time.monotonic() >= end or stopping.wait(_LOOK_AGAIN_S):
                raise


def require_resources(ray: Any, num_workers: int, size: WorkerSize, address: str | None) -> None:
    """Refuse more workers than the cluster has room for: Ray would wait for ever, in silence.

    Raises:
        WorkerError: it has fewer CPUs or GPUs, or less memory.
    """
    there = ray.cluster_resources()
    each = {"CPU": size.cpus, "GPU": size.gpus, "memory": size.memory_bytes or 0}
    for name, amount in each.items():
        has = there.get(name, 0.0)
        if has < num_workers * amount:
            unit = "bytes of memory" if name == "memory" else f"{name}s"
            raise WorkerError(
                f"{num_workers} workers need {num_workers * amount:g} {unit}, "
                f"the Ray cluster has {has:g}",
                where=f"address {address or 'local'}",
                fix=f"use --workers {max(int(has / amount), 1)} or add nodes",
            )


_log = logging.getLogger("workers.pool.ray")


class ClusterWatch:
    """Knows whether the raylet of this machine runs and the head of the cluster answers.

    It asks the operating system, not Ray: without its raylet Ray ends the whole process as soon as
    a value goes to or comes from the object store, and a minute after the head went silent.

    Args:
        ray: connected.
        stopping: ends the thread that looks at the head.
        clock: monotonic seconds.
    """

    def __init__(
        self, ray: Any, stopping: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        context = ray.get_runtime_context()
        self.head = str(context.gcs_address)
        (node,) = [n for n in ray.nodes() if n["NodeID"] == context.get_node_id()]
        self._raylet = _process_behind(node["RayletSocketName"])
        self._stopping = stopping
        self._clock = clock
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
        elif asked is not None and self._clock() - asked > SILENCE_S:
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
            self._asked = self._clock() if self._asked is None else self._asked
            try:
                socket.create_connection((host, int(port)), timeout=_LOOK_EVERY_S).close()
                self._asked = None
            except ConnectionRefusedError:
                # A head on another machine may be started again; ours has nobody who does it.
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


@contextlib.contextmanager
def _import_path_in_environment() -> Iterator[None]:
    """Actors of a local cluster find the packages that this process found, installed or not."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = python_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _keep_stdout_clean(ray: Any) -> None:
    """Ray prints notes of its daemons on stdout, where ``--json`` has its one line.

    No public switch reaches them (``log_to_driver`` does not); ray's own debugger uses this one.
    Lost workers are in our log all the same.
    """
    module: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(module, "_worker_logs_enabled"):
        module._worker_logs_enabled = False
