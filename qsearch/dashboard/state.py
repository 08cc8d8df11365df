"""What routes share: the studies, the limits, the processes that read files. Made once per app."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from compiler.errors import CompilerError
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
    preparing: set[Path] = field(default_factory=set)

    def prepare(self, module: Path) -> None:
        """Derive in the background what the page of a module asks for first."""
        if module in self.preparing:
            return
        self.preparing.add(module)

        def work() -> None:
            try:
                for task, options in (("proof", {}), ("module", {"groups": "fused"}), ("text", {})):
                    self.inspection.ask(task, module, **options)
            except CompilerError:
                return  # whoever opens the page is told why
            self.preparing.discard(module)

        threading.Thread(target=work, daemon=True).start()


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


def slug(name: str) -> str:
    """A study's name with only what a file name may hold."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return kept[:64].lstrip(".") or "study"
