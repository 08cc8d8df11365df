"""Questions about the queue of a server: jobs, and the files that users uploaded."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from qsearch.errors import ConflictError
from qsearch.store.database import Database
from qsearch.store.records import (
    Failure,
    Job,
    JobState,
    NewJob,
    Upload,
    columns_of,
    failure_columns,
)
from qsearch.store.tables import JOB, UPLOAD

_UNFINISHED = ("queued", "running")


class JobQueries(Database):
    """Queue, start and end jobs; store who uploaded which file.

    A job changes its state only from the state that the caller names, so a server that starts again
    and a driver that ends at the same time do not undo each other's work.
    """

    def add_job(self, job: NewJob) -> Job:
        """Queue a job.

        Raises:
            ConflictError: the server has a job of this name.
        """
        row = insert(JOB).values(
            **columns_of(job),
            state="queued",
            attempts=0,
            cancelled=False,
            created_at=self.clock(),
        )
        try:
            self.execute(row)
        except IntegrityError as error:
            raise ConflictError(
                f"there is a study {job.name!r} already", where="name", fix="choose another"
            ) from error
        (made,) = self.jobs(job.server, name=job.name)
        return made

    def jobs(
        self, server: str, *, name: str | None = None, states: Collection[JobState] | None = None
    ) -> list[Job]:
        """Jobs of a server, oldest first: all, the one of a name, or those in some states."""
        query = select(JOB).where(JOB.c.server == server)
        if name is not None:
            query = query.where(JOB.c.name == name)
        if states is not None:
            query = query.where(JOB.c.state.in_(states))
        return self.records(Job, query.order_by(JOB.c.id))

    def last_starts(self, server: str) -> dict[str, float]:
        """Return the time of each owner's last start of a driver."""
        newest = select(JOB.c.owner, func.max(JOB.c.started_at)).where(
            JOB.c.server == server, JOB.c.started_at.is_not(None)
        )
        return {owner: float(at) for owner, at in self.read(newest.group_by(JOB.c.owner))}

    def job(self, job_id: int) -> Job | None:
        """The job of this id; None where it was deleted."""
        return next(iter(self.records(Job, select(JOB).where(JOB.c.id == job_id))), None)

    def start_job(self, job_id: int) -> bool:
        """Note that a driver starts; False where the job is not queued any more."""
        return self._change(job_id, ("queued",), state="running", pid=None, started_at=self.clock())

    def note_driver(self, job_id: int, pid: int) -> None:
        """Keep the process that drives a job."""
        self._change(job_id, ("running",), pid=pid)

    def note_study(self, job_id: int, study_id: int) -> None:
        """Keep which study of a database of several the driver of a job made."""
        self._change(job_id, ("running",), study_id=study_id)

    def requeue_job(
        self, job_id: int, attempts: int, delay_s: float = 0.0, failure: Failure | None = None
    ) -> bool:
        """Queue a job again whose driver ended; ``failure`` says why where that is known."""
        return self._change(
            job_id,
            ("running",),
            state="queued",
            attempts=attempts,
            retry_at=self.clock() + delay_s,
            **failure_columns(failure),
        )

    def end_job(
        self,
        job_id: int,
        state: JobState,
        exit_code: int | None = None,
        failure: Failure | None = None,
    ) -> bool:
        """Note how a job ended; False where it had ended."""
        why = failure_columns(failure)
        ended = {"state": state, "exit_code": exit_code, "finished_at": self.clock()}
        return self._change(job_id, _UNFINISHED, **ended, **why)

    def reopen_job(self, job_id: int, settings: Mapping[str, Any], trials: int) -> bool:
        """Queue an ended job again; its study continues with the trials it has."""
        changed = update(JOB).where(JOB.c.id == job_id, JOB.c.state.not_in(_UNFINISHED))
        fresh = {"state": "queued", "attempts": 0, "cancelled": False, "exit_code": None}
        times = {"created_at": self.clock(), "finished_at": None, "retry_at": None}
        asked = {"settings": dict(settings), "trials": trials}
        again = changed.values(**fresh, **times, **asked, **failure_columns(None))
        return bool(self.execute(again))

    def cancel_job(self, job_id: int) -> bool:
        """Note that a job shall end; one that waits ends here. False where it had."""
        ended = {"state": "cancelled", "cancelled": True, "finished_at": self.clock()}
        waited = self._change(job_id, ("queued",), **ended, **failure_columns(None))
        return waited or self._change(job_id, ("running",), cancelled=True)

    def delete_job(self, job_id: int) -> None:
        """Forget a job that ended."""
        self.execute(delete(JOB).where(JOB.c.id == job_id, JOB.c.state.not_in(_UNFINISHED)))

    def _change(self, job_id: int, states: Collection[str], **values: Any) -> bool:
        mine = update(JOB).where(JOB.c.id == job_id, JOB.c.state.in_(states))
        return bool(self.execute(mine.values(**values)))

    # Uploads

    def add_upload(self, server: str, owner: str, upload: Upload) -> None:
        """Note that a user uploaded a file; once more is no error."""
        row = insert(UPLOAD).values(server=server, owner=owner, **columns_of(upload))
        with contextlib.suppress(IntegrityError):
            self.execute(row)

    def uploads_of(self, server: str, owner: str) -> list[Upload]:
        """List the uploads of a user, oldest first."""
        query = select(UPLOAD).where(UPLOAD.c.server == server, UPLOAD.c.owner == owner)
        return self.records(Upload, query.order_by(UPLOAD.c.id))

    def forget_upload(self, server: str, owner: str, sha256: str) -> int:
        """Take an upload from a user's list; how many users still have the file."""
        of_file = (UPLOAD.c.server == server, UPLOAD.c.sha256 == sha256)
        self.execute(delete(UPLOAD).where(*of_file, UPLOAD.c.owner == owner))
        return int(self.read(select(func.count()).select_from(UPLOAD).where(*of_file))[0][0])
