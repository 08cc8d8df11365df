"""The queue of a server: it takes submissions and decides which study runs next."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

from qsearch.errors import ConflictError, RunFolderError, SearchError, SettingsError, StoreError
from qsearch.process import file_lock
from qsearch.run.run_folder import RunFolder, is_folder_name
from qsearch.server.driver import Drivers, note_study
from qsearch.server.submission import FILES, GROWING, ServerOptions, checked
from qsearch.server.tokens import User
from qsearch.server.uploads import Uploads, references
from qsearch.store.artifacts import write_atomically
from qsearch.store.engine import RetryPolicy, open_engine, parse_url, require_folder
from qsearch.store.records import Job, NewJob, Study
from qsearch.store.repository import Repository

POLL_S: Final = 0.25
MOST_WAITING: Final = 1000
_RETRY: Final = RetryPolicy(5.0)
"""A request fails after 5 s without the database; it does not wait for it."""
SPARE_CONNECTIONS: Final = 16
"""Beside one a driver: for heartbeats, the server and the pages that it shows."""
log = logging.getLogger("qsearch.server")


class UnknownJobError(SearchError):
    """The queue has no job of a name."""

    http_status = 404


class TooManyStudiesError(SearchError):
    """A user, or all together, would have more studies in the queue than are allowed."""

    http_status = 429


class ForbiddenError(SearchError):
    """A user may not change a study of another user, or may only read."""

    http_status = 403


@dataclass(eq=False)
class JobQueue:
    """Takes submissions and runs a few at a time.

    Users take turns: the one with the fewest running studies goes first, then the one of whom none
    has started for the longest time. Of one user older submissions go first.

    Args:
        options: where studies lie and what they run on.
        drivers: starts and watches the drivers of jobs.
        clock: UTC seconds since 1970.
    """

    options: ServerOptions
    _: KW_ONLY
    drivers: Callable[[ServerOptions, Repository], Drivers] = Drivers
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def open(self, *, serve: bool = True) -> None:
        """Lock the folder, open the queue, and begin to run its studies; does nothing when open.

        Args:
            serve: call ``step`` in a thread, several times a second.
        Raises:
            SettingsError: another server works on the folder, or SQLite is to hold several studies.
            StoreError: the database cannot be used, or has an older schema.
        """
        if self._thread is not None:
            return
        options = self.options
        if options.storage is not None:
            require_folder(options.storage)
            if (
                parse_url(options.storage).get_backend_name() == "sqlite"
                and options.max_studies > 1
            ):
                raise SettingsError(
                    "SQLite admits one driver to a database",
                    where="--storage, --max-studies",
                    fix="leave --storage out (each study has a file of its own), or use PostgreSQL",
                )
        options.jobs.mkdir(parents=True, exist_ok=True)
        busy = SettingsError(
            "another server runs the studies of this folder",
            where=str(options.root),
            fix="stop it, or serve another folder",
        )
        self._held.enter_context(file_lock(options.jobs / "server.lock", busy))
        self.server = _identity(options.jobs / "server")
        engine = open_engine(options.queue_url)
        self.repository = Repository(engine, self.clock, retry=_RETRY)
        self._held.callback(self.repository.close)
        self._check_connections()
        self.uploads = Uploads(options.uploads, self.repository, self.server)
        self.uploads.clear_parts()
        self._drivers = self.drivers(options, self.repository)
        self._thread = threading.Thread(target=self._run, name="queue", daemon=True)
        if serve:
            self._thread.start()

    def _check_connections(self) -> None:
        """Warn where a database server has fewer connections than the drivers need."""
        most = self.repository.most_connections()
        studies = self.options.max_studies
        if most is not None and studies + SPARE_CONNECTIONS > most:
            log.warning(
                "the database has %s connections, and %s studies at a time need %s: drivers will "
                "wait for one; raise max_connections of PostgreSQL, or lower --max-studies",
                *(f"{count:,}" for count in (most, studies, studies + SPARE_CONNECTIONS)),
            )

    def close(self) -> None:
        """Start no more studies; running drivers continue, and the next server finds them."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._held.close()

    # What users ask -------------------------------------------------------------------------------

    def submit(
        self,
        user: User,
        settings: Mapping[str, Any],
        *,
        name: str | None = None,
        stem: str = "study",
    ) -> Job:
        """Queue a study; an equal submission continues the study that is there.

        Args:
            settings: of ``launch``; files as references of uploads.
            name: of the study; None makes one from ``stem``.
        Raises:
            SettingsError: settings that cannot be used.
            ConflictError: the name is another study's.
            TooManyStudiesError: the user's limit is reached, or the queue is full.
        """
        found = checked(settings, self.options)
        given = {key: value for key, value in settings.items() if value is not None}
        with self._lock:
            for key in FILES:
                if references(given.get(key)):
                    self.uploads.require(user, given[key])
            known = self._place_for(user, given, name, stem)
            if isinstance(known, Job) and not _goes_on(known, found.trials):
                return known
            self._check_room(user)
            if isinstance(known, Job):
                self.repository.reopen_job(known.id, given, found.trials)
                return self.job(known.name)
            return self.repository.add_job(
                NewJob(self.server, known, user.name, given, found.trials)
            )

    def resume(self, folder: RunFolder, user: User) -> Job:
        """Queue the study of a run folder once more, with its own settings.

        Raises:
            ForbiddenError: it is another user's.
        """
        name = folder.path.name
        with self._lock:
            known = self.repository.jobs(self.server, name=name)
            if known:
                require_owner(known[0], user)
                if self.options.folder_of(known[0]).path.resolve() != folder.path.resolve():
                    raise ConflictError(
                        f"the queue has another study {name!r}",
                        where="name",
                        fix="delete that one, or rename this run folder",
                    )
                self.repository.reopen_job(known[0].id, known[0].settings, known[0].trials)
                return self.job(name)
            if not user.operator:
                raise ForbiddenError(
                    "only the server's operator goes on with this study", where=name
                )
            return self.repository.add_job(NewJob(self.server, name, user.name, {}, 1))

    def job(self, name: str) -> Job:
        """The job of this name.

        Raises:
            UnknownJobError: there is none.
        """
        found = self.repository.jobs(self.server, name=name)
        if not found:
            raise UnknownJobError(
                f"the queue has no study {name!r}", where="name", fix="see `qsearch queue`"
            )
        return found[0]

    def job_of(self, study: Study, folder: Path | None) -> Job | None:
        """The job that made a study; None for a study that was not submitted.

        A name alone says nothing: folders are renamed, and others give studies equal names.

        Args:
            folder: with the database of the study; None: it is in that of the queue.
        """
        found = self.repository.jobs(self.server, name=study.name)
        if not found:
            return None
        if folder is None:
            if found[0].study_id == study.id:
                return found[0]
            return None
        own = self.options.folder_of(found[0]).path
        if own.resolve() == folder.resolve():
            return found[0]
        return None

    def delete(self, job: Job | None, delete: Callable[[], object]) -> None:
        """Delete a study and the job that made it.

        Args:
            job: that made it, if one did.
            delete: the study and its files, while no submission can start it again.
        Raises:
            SettingsError: it waits or runs.
        """
        with self._lock:
            now = None if job is None else self.repository.job(job.id)
            if now is not None and now.state in ("queued", "running"):
                raise SettingsError(
                    f"study {now.name!r} is {now.state}", where="queue", fix="cancel it first"
                )
            delete()
            if now is not None:
                self.repository.delete_job(now.id)

    def jobs(self) -> list[tuple[Job, int | None]]:
        """All jobs, oldest first, with the position of those that wait; 1 runs next."""
        jobs = self.repository.jobs(self.server)
        places = {job.id: place for place, job in enumerate(self._in_order(jobs), 1)}
        return [(job, places.get(job.id)) for job in jobs]

    def cancel(self, name: str, user: User) -> Job:
        """End a job; a running one first writes the best module so far.

        Raises:
            ForbiddenError: it is another user's.
        """
        job = self.job(name)
        require_owner(job, user)
        self.repository.cancel_job(job.id)
        return self.job(name)

    def forget_upload(self, user: User, sha256: str) -> None:
        """Take a file from a user's list, unless a study that is not over needs it.

        Raises:
            SettingsError: one does, or the user has no such file.
        """
        known = self.repository.uploads_of(self.server, user.name)
        if all(upload.sha256 != sha256 for upload in known):
            raise SettingsError(
                "you have no such upload",
                where=sha256[:64],
                fix="see `qsearch queue --uploads`",
            )
        with self._lock:
            for job in self.repository.jobs(self.server, states=["queued", "running"]):
                used = [str(job.settings.get(name)).partition(".")[0] for name in FILES]
                if job.owner == user.name and sha256 in used:
                    raise SettingsError(
                        f"study {job.name!r} needs this file", where=sha256, fix="cancel it first"
                    )
            self.uploads.forget(user, sha256)

    def _place_for(
        self, user: User, settings: Mapping[str, Any], name: str | None, stem: str
    ) -> Job | str:
        """The job that the submission continues, or a name that is free."""
        stems = (stem, *(f"{stem}-{n}" for n in range(2, 10_000)))
        for candidate in [name] if name else filter(is_folder_name, stems):
            known = self.repository.jobs(self.server, name=candidate)
            if known and known[0].owner == user.name and not _changed(known[0].settings, settings):
                return known[0]
            if not known and not self._is_taken(candidate):
                return candidate
        what = f"there is another study {name!r}"
        if known and known[0].owner == user.name:
            what += f" of yours, with another {', '.join(_changed(known[0].settings, settings))}"
        raise ConflictError(what, where="name", fix="choose another name, or leave it out")

    def _is_taken(self, name: str) -> bool:
        if os.path.lexists(self.options.folder(name).path):
            return True
        return self.options.storage is not None and self.repository.find_study(name) is not None

    def _check_room(self, user: User) -> None:
        """Refuse one more study where the queue is full, or the user has as many as allowed."""
        jobs = self.repository.jobs(self.server, states=["queued", "running"])
        if sum(job.state == "queued" for job in jobs) >= MOST_WAITING:
            raise TooManyStudiesError(
                f"{MOST_WAITING} studies wait already", where="queue", fix="try again later"
            )
        mine = sum(job.owner == user.name for job in jobs)
        if user.max_studies is not None and mine >= user.max_studies:
            raise TooManyStudiesError(
                f"{mine} of your studies wait or run, and {user.max_studies} are the most",
                where="queue",
                fix="wait until one ends, or cancel one",
            )

    # What the queue does --------------------------------------------------------------------------

    def _run(self) -> None:
        told: str | None = None
        while not self._stop.is_set():
            try:
                self.step()
                told = None
            except (StoreError, OSError) as error:  # a database that restarts, a full disk
                if str(error) != told:
                    log.error("the queue waits: %s", error)
                told = str(error)
            except Exception:
                log.exception("the queue met an error")
            self._stop.wait(POLL_S)

    def step(self) -> None:
        """Handle the jobs whose drivers ended, and start those that are next."""
        jobs = self.repository.jobs(self.server, states=["queued", "running"])
        running = [job for job in jobs if job.state == "running"]
        for job in running:
            if job.study_id is None:
                note_study(self.repository, self.options, job)
            if not self._drivers.is_alive(job):
                self._drivers.reap(job)
            else:
                self._drivers.watch(job)
        free = self.options.max_studies - len(running)
        now = self.clock()
        ready = [job for job in jobs if job.state == "running" or (job.retry_at or 0) <= now]
        for job in self._in_order(ready)[:free] if free > 0 else ():
            if self.repository.start_job(job.id):
                self._drivers.start(job)

    def _in_order(self, jobs: Sequence[Job]) -> list[Job]:
        """The waiting jobs in the order in which they will start.

        Args:
            jobs: those that wait, oldest first, and those that run.
        """
        ahead = Counter(job.owner for job in jobs if job.state == "running")
        waiting = [job for job in jobs if job.state == "queued"]
        started = self.repository.last_starts(self.server)
        turns = []
        for job in waiting:
            turns.append((ahead[job.owner], started.get(job.owner, 0.0), job.id, job))
            ahead[job.owner] += 1
        return [job for *_, job in sorted(turns, key=lambda turn: turn[:3])]


def require_owner(job: Job, user: User) -> None:
    """Refuse a user who may not change a job.

    Raises:
        ForbiddenError: it is another user's.
    """
    if not user.owns(job.owner):
        raise ForbiddenError(
            f"study {job.name!r} is {job.owner}'s", where="token", fix=f"ask {job.owner}"
        )


def _goes_on(job: Job, trials: int) -> bool:
    """Return whether a submission asks for more trials than a known study has or will have."""
    if job.state in ("queued", "running"):
        return False
    return job.state != "done" or trials > job.trials


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Settings that make two studies of two submissions."""
    decide = (set(one) | set(other)) - set(GROWING)
    return sorted(name for name in decide if one.get(name) != other.get(name))


def _identity(path: Path) -> str:
    """The name of the server in its folder, which moves with the folder."""
    if not path.is_file():
        write_atomically(path, secrets.token_hex(16).encode())
    text = path.read_text(encoding="ascii").strip()
    if len(text) != 32:
        raise RunFolderError(
            "the file with the server's name is damaged", where=str(path), fix="restore it"
        )
    return text
