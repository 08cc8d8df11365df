"""Pools by name."""

from __future__ import annotations

from workers.errors import WorkerError
from workers.pool.protocol import WorkerPool, WorkerSize

POOLS = ("ray", "process", "inline")
REQUEST_TIMEOUT_S = 3600.0
"""A request is a part of one evaluation: minutes at most, unless its worker hangs."""


def open_pool(
    name: str,
    num_workers: int,
    address: str | None = None,
    request_timeout_s: float | None = REQUEST_TIMEOUT_S,
    size: WorkerSize | None = None,
) -> WorkerPool:
    """A pool of this kind; ray is imported for "ray" only.

    Args:
        name: one of POOLS.
        num_workers: workers at the same time; "inline" has one.
        address: of a Ray cluster; None starts a local one.
        request_timeout_s: a worker busy longer counts as dead; not for "inline".
        size: what each worker may use; not for "inline".
    Raises:
        WorkerError: another name, or an address without Ray.
    """
    if address is not None and name != "ray":
        raise WorkerError(f"--address {address} belongs to --pool ray, not {name!r}")
    if name == "ray":
        from workers.pool.on_ray import RayPool

        return RayPool(num_workers, address, request_timeout_s=request_timeout_s, size=size)
    if name == "process":
        from workers.pool.process import ProcessPool

        return ProcessPool(num_workers, request_timeout_s=request_timeout_s, size=size)
    if name == "inline":
        from workers.pool.local import LocalPool

        return LocalPool()
    raise WorkerError(f"unknown pool {name!r}", fix=f"legal: {', '.join(POOLS)}")
