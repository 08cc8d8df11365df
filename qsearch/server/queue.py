"""The queue of a server: it takes submissions, checks quotas and decides which study runs next."""

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
from typing import Any, Final, get_args

from qsearch.errors import ConflictError, RunFolderError, SearchError, SettingsError, StoreError
from qsearch.process import file_lock
from qsearch.run.run_folder import RunFolder, is_folder_name
from qsearch.server.driver import Drivers, note_study
from qsearch.server.quota import DAY_S, Usage, counted_before, usage_of
from qsearch.server.submission import BEFORE, FILES, GROWING, ServerOptions, checked
from qsearch.server.tokens import Tokens, User
from qsearch.server.uploads import QuotaError, Uploads, references
from qsearch.store.artifacts import write_atomically
from qsearch.store.engine import RetryPolicy, open_engine, parse_url, require_folder
from qsearch.store.records import Failure, Job, JobState, NewJob, Study
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


class ForbiddenError(SearchError):
    """A user may not change a study of another user, or may only read."""

    http_status = 403


@dataclass(eq=False)
class JobQueue:
    """Takes submissions and runs a few at a time.

    Users take turns: the one with the fewest running studies goes first, then the one of whom none
    has started for the longest time. A priority orders the studies of one user only; among equal
    ones older submissions go first.

    Args:
        options: where studies lie and what they run on.
        tokens: the users and their quotas; None where everybody is the operator.
        drivers: starts and watches the drivers of jobs.
        clock: UTC seconds since 1970.
    """

    options: ServerOptions
    tokens: Tokens | None = None
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
        priority: int = 0,
    ) -> Job:
        """Queue a study; an equal submission continues the study that is there.

        Args:
            settings: of ``launch``; files as references of uploads.
            name: of the study; None makes one from ``stem``.
        Raises:
            SettingsError: settings that cannot be used.
            ConflictError: the name is another study's.
            QuotaError: the user's quota, or the queue, is used up.
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
            if isinstance(known, Job):
                before = counted_before(known, self.options, self.clock())
                self._check_quota(user, found.trials, known, round(before.get("trials", 0)))
                self.repository.reopen_job(known.id, {**given, BEFORE: before}, found.trials)
                return self.job(known.name)
            self._check_quota(user, found.trials, known)
            return self.repository.add_job(
                NewJob(self.server, known, user.name, priority, given, found.trials)
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
                given = dict(known[0].settings)
                if given:  # without any it goes on with those of its run folder
                    given[BEFORE] = counted_before(known[0], self.options, self.clock())
                self.repository.reopen_job(known[0].id, given, known[0].trials)
                return self.job(name)
            if not user.operator:
                raise ForbiddenError(
                    "only the server's operator goes on with this study", where=name
                )
            return self.repository.add_job(NewJob(self.server, name, user.name, 0, {}, 1))

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
        """Delete a study; its owner's quota still counts what it used.

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
            if now is not None and now.state != "deleted":
                at = self.clock()
                used = usage_of([now], 0, at)
                self.repository.delete_job(now.id, (used.trials, used.seconds), at - DAY_S)

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

    def set_priority(self, name: str, user: User, priority: int) -> Job:
        """Give a job that waits another priority.

        Raises:
            ForbiddenError: it is another user's.
            SettingsError: it does not wait.
        """
        job = self.job(name)
        require_owner(job, user)
        if not self.repository.set_priority(job.id, priority):
            raise SettingsError(f"study {name!r} does not wait", where="priority", fix="leave it")
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

    def usage(self, user: User) -> Usage:
        """Return the use of a user's quota."""
        mine = [job for job in self._counted() if job.owner == user.name]
        return usage_of(mine, self.uploads.used(user), self.clock())

    def _counted(self) -> list[Job]:
        return self.repository.jobs(self.server, states=get_args(JobState))

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

    def _check_quota(self, user: User, trials: int, place: Job | str, before: int = 0) -> None:
        """Refuse what goes beyond the quota; a study that goes on counts once.

        Args:
            before: trials of the study that do not count any more.
        """
        jobs = [job for job in self._counted() if job != place]
        if sum(job.state == "queued" for job in jobs) >= MOST_WAITING:
            raise QuotaError(
                f"{MOST_WAITING} studies wait already", where="queue", fix="try again later"
            )
        used = usage_of([job for job in jobs if job.owner == user.name], 0, self.clock())
        most = user.quota
        left = trials if most.max_trials is None else max(most.max_trials - used.trials, 0)
        more = trials - before
        if more > left:
            raise QuotaError(
                f"{more} trials are more than is left of your {most.max_trials} in 24 hours",
                where=f"quota of trials, {used.trials} used",
                fix=f"ask for {left + before} at most (--trials), or wait" if left else "wait",
            )
        if most.max_seconds is not None and used.seconds >= most.max_seconds:
            raise _out_of_time(most.max_seconds)

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
            elif self._drivers.watch(job):
                self._check_time(job)
        free = self.options.max_studies - len(running)
        now = self.clock()
        ready = [job for job in jobs if job.state == "running" or (job.retry_at or 0) <= now]
        for job in self._in_order(ready)[:free] if free > 0 else ():
            if self.repository.start_job(job.id):
                self._drivers.start(job)

    def _in_order(self, jobs: Sequence[Job]) -> list[Job]:
        """The waiting jobs in the order in which they will start.

        Args:
            jobs: those that wait and those that run, which decide between equal priorities.
        """
        ahead = Counter(job.owner for job in jobs if job.state == "running")
        waiting = [job for job in jobs if job.state == "queued"]
        started = self.repository.last_starts(self.server)
        turns = []
        for job in sorted(waiting, key=lambda job: (-job.priority, job.id)):
            turns.append((ahead[job.owner], started.get(job.owner, 0.0), job.id, job))
            ahead[job.owner] += 1
        return [job for *_, job in sorted(turns, key=lambda turn: turn[:3])]

    def _check_time(self, job: Job) -> None:
        user = None if self.tokens is None else self.tokens.users().get(job.owner)
        most = None if user is None else user.quota.max_seconds
        if user is not None and most is not None and self.usage(user).seconds >= most:
            why = _out_of_time(most)
            self.repository.cancel_job(job.id, Failure(why.what, why.where, why.fix))


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


def _out_of_time(most: float) -> QuotaError:
    return QuotaError(
        f"your studies ran for the {most:g} s of your quota in 24 hours",
        where="quota of time",
        fix="submit the same again tomorrow: finished trials are kept",
    )


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
