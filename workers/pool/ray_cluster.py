"""Start or join a Ray cluster: quiet, bounded, with authentication; ray comes as an argument."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from workers.errors import WorkerError
from workers.pool.protocol import WorkerSize
from workers.pool.python_path import python_path

JOIN_S = 30.0
"""How long nodes of a cluster may take to join it, before it counts as too small."""
_LOOK_AGAIN_S = 0.2

OBJECT_STORE_BYTES = 300 << 20
"""Shared memory of a local cluster: models, reference outputs, merged statistics."""


def connect(ray: Any, address: str | None, num_workers: int, size: WorkerSize) -> None:
    """Join the cluster at ``address``, or start one on this machine with room for the workers.

    Raises:
        WorkerError: nobody answers there, or refuses us.
    """
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        with _import_path_in_environment():
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
