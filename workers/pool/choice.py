"""Pools by name."""

from __future__ import annotations

from workers.errors import WorkerError
from workers.pool.protocol import WorkerPool

POOLS = ("ray", "process", "inline")


def open_pool(
    name: str,
    num_workers: int,
    address: str | None = None,
    request_timeout_s: float | None = None,
) -> WorkerPool:
    """A pool of this kind; ray is imported for "ray" only.

    Args:
        name: one of POOLS.
        num_workers: workers at the same time; "inline" has one.
        address: of a Ray cluster; None starts a local one.
        request_timeout_s: a worker busy longer counts as dead; not for "inline".
    Raises:
        WorkerError: another name, or an address without Ray.
    """
    if address is not None and name != "ray":
        raise WorkerError(f"--address {address} belongs to --pool ray, not {name!r}")
    if name == "ray":
        from workers.pool.on_ray import RayPool

        return RayPool(num_workers, address, request_timeout_s=request_timeout_s)
    if name == "process":
        from workers.pool.process import ProcessPool

        return ProcessPool(num_workers, request_timeout_s=request_timeout_s)
    if name == "inline":
        from workers.pool.local import LocalPool

        return LocalPool()
    raise WorkerError(f"unknown pool {name!r}", fix=f"legal: {', '.join(POOLS)}")
