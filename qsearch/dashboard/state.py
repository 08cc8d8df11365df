"""What routes share: the studies, the limits, the processes that read files. Made once per app."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from qsearch.dashboard.inspection import Inspection
from qsearch.dashboard.launcher import Starter
from qsearch.dashboard.live import Live
from qsearch.dashboard.security import Policy
from qsearch.dashboard.snapshots import Snapshot, Snapshots
from qsearch.dashboard.sources import Sources


@dataclass(frozen=True, slots=True)
class Shared:
    """What every route may use.

    Attributes:
        starter: launches searches; None where that is not allowed.
        exports: folder for modules in other forms; lives as long as the server.
    """

    policy: Policy
    sources: Sources
    snapshots: Snapshots
    live: Live
    inspection: Inspection
    starter: Starter | None
    exports: Path


def shared(request: Request) -> Shared:
    """The application's."""
    return cast(Shared, request.app.state.shared)


SharedDep = Annotated[Shared, Depends(shared)]


def snapshot(key: str, found: SharedDep) -> Snapshot:
    """The study that the path names.

    Raises:
        NotFoundError: there is none.
    """
    return found.snapshots.of(key)


SnapshotDep = Annotated[Snapshot, Depends(snapshot)]
