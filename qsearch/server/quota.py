"""Use of the quotas of users: uploads now, trials and time of drivers in 24 hours.

For the operator there is a list of who may use a server: never tokens or hashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from qsearch.errors import EmptyStoreError, StoreError
from qsearch.exit_codes import EXIT_BAD_INPUT
from qsearch.server.submission import BEFORE, ServerOptions
from qsearch.server.tokens import Quota, Tokens
from qsearch.store.engine import open_reader
from qsearch.store.records import Job, JobState
from qsearch.store.repository import Repository

DAY_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a user: bytes now, trials and seconds of drivers in the last 24 hours."""

    bytes: int
    trials: int
    seconds: float


def usage_of(jobs: Sequence[Job], size: int, now: float) -> Usage:
    """Add up the use of the quota by the owner of some jobs."""
    lately = [job for job in jobs if (job.finished_at or now) > now - DAY_S]
    asked = sum(_counted(job) for job in jobs if job.created_at > now - DAY_S)
    return Usage(size, asked, sum(job.seconds - _before(job, "seconds") for job in lately))


def _counted(job: Job) -> int:
    """Trials of a job in its owner's quota; none where no driver began, or refused the input."""
    refused = job.state == "failed" and job.exit_code == EXIT_BAD_INPUT
    idle = job.state == "cancelled" and job.started_at is None
    if refused or idle:
        return 0
    return max(job.trials - round(_before(job, "trials")), 0)


def _before(job: Job, what: str) -> float:
    return float(job.settings.get(BEFORE, {}).get(what, 0))


def counted_before(job: Job, options: ServerOptions, now: float) -> dict[str, float]:
    """Return the use that its owner's quota does not count again when an ended job goes on.

    Finished trials, where the job was last asked for more than a day ago; seconds, where it ended
    more than a day ago.
    """
    found = dict(job.settings.get(BEFORE, {}))
    if job.settings and job.created_at <= now - DAY_S:
        found["trials"] = _finished(job, options)
    if job.settings and (job.finished_at or now) <= now - DAY_S:
        found["seconds"] = job.seconds
    return found


def _finished(job: Job, options: ServerOptions) -> int:
    database = options.folder_of(job).database.absolute()
    try:
        engine = open_reader(options.storage or f"sqlite:///{database}")
    except StoreError:  # its driver never began
        return 0
    with closing(Repository(engine)) as repository:
        study = repository.find_study(job.name)
        if study is None:
            return 0
        return repository.count_trials(study.id).finished


def list_users(options: ServerOptions, tokens: Tokens, now: float) -> list[dict[str, Any]]:
    """A row per user: rights, limits and use; it reads the queue beside a running server.

    A user who was removed and still has files or studies is listed, and may nothing.

    Args:
        now: UTC seconds since 1970.
    Raises:
        SettingsError: the file of tokens cannot be used.
        StoreError: the database of the queue cannot be used.
    """
    users = tokens.users()
    jobs, sizes = _of_queue(options)
    rows = []
    for name in sorted({*users, *sizes, *(job.owner for job in jobs)}):
        mine = [job for job in jobs if job.owner == name]
        user = users.get(name)
        used = asdict(usage_of(mine, sizes.get(name, 0), now))
        states = Counter(job.state for job in mine)
        limits = Quota() if user is None else user.quota
        rows.append(
            {
                "user": name,
                "may": "nothing" if user is None else user.may,
                "running": states["running"],
                "queued": states["queued"],
                **{f"{what}_used": round(amount) for what, amount in used.items()},
                **limits.model_dump(),
            }
        )
    return rows


def _of_queue(options: ServerOptions) -> tuple[list[Job], dict[str, int]]:
    """The jobs of a server and the bytes of uploads by user; nothing before it first ran."""
    identity = options.jobs / "server"
    if not identity.is_file():
        return [], {}
    server = identity.read_text(encoding="ascii").strip()
    try:
        engine = open_reader(options.queue_url)
    except EmptyStoreError:
        return [], {}
    with closing(Repository(engine)) as repository:
        jobs = repository.jobs(server, states=get_args(JobState))
        return jobs, repository.bytes_by_owner(server)
