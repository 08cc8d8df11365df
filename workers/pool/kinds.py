"""The kinds of pools, by name."""

from __future__ import annotations

from typing import Any

from workers.pool.process_pool import ProcessPool
from workers.pool.protocol import WorkerSize
from workers.pool.queued_pool import InlinePool, WorkerPool
from workers.user_code import UserCode


def open_pool(
    name: str,
    num_workers: int,
    address: str | None = None,
    request_timeout_s: float | None = None,
    size: WorkerSize | None = None,
    code: UserCode = (),
) -> WorkerPool:
    """Return a pool of this kind; ray is imported for "ray" only.

    Args:
        name: inline, process or ray, as the settings check it.
        num_workers: workers at the same time; "inline" has one.
        address: of a Ray cluster; None starts a local one.
        request_timeout_s: a worker busy longer counts as dead; not for "inline".
        size: what each worker may use; not for "inline".
        code: the user's modules, imported in this process already.
    """
    if name == "inline":
        return InlinePool()
    more: dict[str, Any] = {"request_timeout_s": request_timeout_s, "size": size, "code": code}
    if name == "process":
        return ProcessPool(num_workers, **more)
    from workers.pool.ray_pool import RayPool

    return RayPool(num_workers, address, **more)
