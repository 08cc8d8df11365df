"""What users used of their quotas: uploads now, trials and time of drivers in 24 hours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from qsearch.errors import StoreError
from qsearch.exit_codes import EXIT_BAD_INPUT
from qsearch.server.submission import BEFORE, ServerOptions
from qsearch.store.engine import open_reader
from qsearch.store.records import Job
from qsearch.store.repository import Repository

DAY_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a user used: bytes now, trials and seconds of drivers in the last 24 hours."""

    bytes: int
    trials: int
    seconds: float


def usage_of(jobs: Sequence[Job], size: int, now: float) -> Usage:
    """What the owner of some jobs used of the quota."""
    lately = [job for job in jobs if (job.finished_at or now) > now - DAY_S]
    asked = sum(_counted(job) for job in jobs if job.created_at > now - DAY_S)
    return Usage(size, asked, sum(job.seconds - _before(job, "seconds") for job in lately))


def _counted(job: Job) -> int:
    """Trials of a job in its owner's quota; none where no driver began, or refused the input."""
    refused = job.state == "failed" and job.exit_code == EXIT_BAD_INPUT
    idle = job.state == "cancelled" and job.started_at is None
    return 0 if refused or idle else max(job.trials - round(_before(job, "trials")), 0)


def _before(job: Job, what: str) -> float:
    return float(job.settings.get(BEFORE, {}).get(what, 0))


def counted_before(job: Job, options: ServerOptions, now: float) -> dict[str, float]:
    """What its owner's quota does not count again when an ended job goes on.

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
        return 0 if study is None else repository.count_trials(study.id).finished
