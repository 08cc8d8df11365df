"""The kinds of pools, by name."""

from __future__ import annotations

from workers.errors import WorkerError
from workers.pool.process_pool import ProcessPool
from workers.pool.protocol import POOLS, REQUEST_TIMEOUT_S, WorkerSize
from workers.pool.queued_pool import InlinePool, WorkerPool
from workers.user_code import UserCode


def open_pool(
    name: str,
    num_workers: int,
    address: str | None = None,
    request_timeout_s: float | None = REQUEST_TIMEOUT_S,
    size: WorkerSize | None = None,
    code: UserCode = (),
) -> WorkerPool:
    """A pool of this kind; ray is imported for "ray" only.

    Args:
        name: one of POOLS.
        num_workers: workers at the same time; "inline" has one.
        address: of a Ray cluster; None starts a local one.
        request_timeout_s: a worker busy longer counts as dead; not for "inline".
        size: what each worker may use; not for "inline".
        code: the user's modules, imported in this process already.
    Raises:
        WorkerError: another name, or an address without Ray.
    """
    if address is not None and name != "ray":
        raise WorkerError(f"--address {address} belongs to --pool ray, not {name!r}")
    if name == "ray":
        from workers.pool.ray_pool import RayPool

        return RayPool(
            num_workers, address, request_timeout_s=request_timeout_s, size=size, code=code
        )
    if name == "process":
        return ProcessPool(num_workers, request_timeout_s=request_timeout_s, size=size, code=code)
    if name == "inline":
        return InlinePool()
    raise WorkerError(f"unknown pool {name!r}", fix=f"legal: {', '.join(POOLS)}")
