"""Who may use a server and what each user uses of it, for its operator: never tokens or hashes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict
from typing import Any, get_args

from qsearch.errors import EmptyStoreError
from qsearch.server.quota import usage_of
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import Quota, Tokens
from qsearch.store.engine import open_reader
from qsearch.store.records import Job, JobState
from qsearch.store.repository import Repository


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
        mine, user = [job for job in jobs if job.owner == name], users.get(name)
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
