"""State that routes share: the studies, the limits, the processes that read files. Made once per
app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, TypeVarTuple, cast

from fastapi import Depends, Request

from compiler.errors import CompilerError
from qsearch.dashboard.inspection import Inspection
from qsearch.dashboard.security import USER, Policy
from qsearch.dashboard.snapshots import Snapshot, Snapshots
from qsearch.dashboard.sources import Sources
from qsearch.server.queue import ForbiddenError, JobQueue
from qsearch.server.tokens import User
from qsearch.store.records import Job
from qsearch.store.view_queries import Note

UPLOADS: Final = 4
"""Uploads that are checked at a time; others wait, and nothing waits for them."""
Ts = TypeVarTuple("Ts")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """State for every route.

    Attributes:
        queue: runs what users submit; None where submitting is off.
        exports: folder for modules in other forms; lives as long as the server.
        uploaded: reads what users send, in processes of its own: pages do not wait for uploads.
    """

    policy: Policy
    sources: Sources
    snapshots: Snapshots
    inspection: Inspection
    queue: JobQueue | None
    exports: Path
    uploaded: Inspection
    uploads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(UPLOADS))
    preparing: set[Path] = field(default_factory=set)
    preparer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    async def uploading(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run ``work`` in the threads of uploads."""
        return await asyncio.get_running_loop().run_in_executor(self.uploads, work, *args)

    def can_resume(self, study: Snapshot) -> bool:
        """Return whether this server can resume a study without a live driver."""
        folder = study.folder
        return (
            self.queue is not None
            and folder is not None
            and folder.config.is_file()
            and folder.path.parent in (self.queue.options.studies, self.queue.options.root)
        )

    def job_of(self, study: Snapshot) -> Job | None:
        """The job that made a study; None for one that was not submitted here."""
        queue = self.queue
        folder = study.source.folder
        if queue is None or (folder is None and study.source.url != queue.options.storage):
            return None
        return queue.job_of(study.study, folder)

    def may_change(self, study: Snapshot, user: User) -> bool:
        """Return whether a user may change a study: users change those that they submitted."""
        job = None if user.operator else self.job_of(study)
        return user.operator or (user.submits and job is not None and user.owns(job.owner))

    def may_see_hashes(self, study: Snapshot, user: User) -> bool:
        """Return whether a user is told the hashes of a study's files: an upload goes by its
        hash."""
        job = None if user.operator else self.job_of(study)
        return user.operator or (job is not None and job.owner == user.name)

    def require_change(self, study: Snapshot, user: User) -> None:
        """Refuse a user who may not change a study.

        Raises:
            ForbiddenError: it is another user's.
        """
        if not self.may_change(study, user):
            raise ForbiddenError(
                f"study {study.study.name!r} is not yours",
                where="Authorization",
                fix="ask its owner, or the server's operator",
            )

    def prepare(self, module: Path) -> None:
        """Derive the proof of a module in the background, one module at a time.

        The search does not write it: the proof that is shown is derived from the file, here.
        """
        if module in self.preparing:
            return
        self.preparing.add(module)

        def work() -> None:
            try:
                self.inspection.ask("proof", module)
            except CompilerError:
                return  # whoever opens the page is told why
            self.preparing.discard(module)

        with contextlib.suppress(RuntimeError):  # the server ends
            self.preparer.submit(work)


def shared(request: Request) -> Shared:
    """The application's."""
    return cast(Shared, request.app.state.shared)


SharedDep = Annotated[Shared, Depends(shared)]


def user(request: Request) -> User:
    """Return the user that the guard found."""
    return cast(User, request.scope[USER])


UserDep = Annotated[User, Depends(user)]


def snapshot(key: str, found: SharedDep) -> Snapshot:
    """The study that the path names.

    Raises:
        NotFoundError: there is none.
    """
    return found.snapshots.of(key)


SnapshotDep = Annotated[Snapshot, Depends(snapshot)]


def note_fields(note: Note) -> dict[str, Any]:
    """A note as answers about a trial or a study show it."""
    return {"note": note.note, "note_by": note.author, "tags": list(note.tags)}


def slug(name: str) -> str:
    """A study's name with only what a file name may hold."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    return kept[:64].lstrip(".") or "study"
