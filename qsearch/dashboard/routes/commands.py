"""Routes that change something: commands for drivers, notes, and the cookie of a session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response

from qsearch.commands.studies import delete
from qsearch.dashboard.schemas import CommandIn, CommandOut, DeleteIn, NoteIn, SessionIn, TryIn
from qsearch.dashboard.security import SESSION_PATH
from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.sources import NotFoundError
from qsearch.dashboard.state import SharedDep, SnapshotDep, UserDep
from qsearch.errors import SearchError, SettingsError
from qsearch.search.trying import TRY, wish
from qsearch.server.tokens import session_of
from qsearch.store.engine import open_engine
from qsearch.store.records import listening
from qsearch.store.repository import Repository
from qsearch.store.view_queries import NOTE

router = APIRouter(tags=["commands"])


class WrongTokenError(SearchError):
    """A session was asked for with another token."""

    http_status = 401


@contextlib.contextmanager
def _writing(study: Snapshot) -> Iterator[Repository]:
    """The database of a study, to be read again: who has written to it sees what was written."""
    with contextlib.closing(Repository(open_engine(study.source.url, create=False))) as repository:
        try:
            yield repository
        finally:
            with study.lock:
                study.read_at = float("-inf")


@router.post("/api/v1/studies/{key}/commands")
def add_command(
    asked: CommandIn, study: SnapshotDep, found: SharedDep, user: UserDep
) -> CommandOut:
    """Pause, resume or stop: stored for the drivers, which look every second.

    A search without a driver goes on in the queue, where there is one.
    """
    found.require_change(study, user)
    drivers = study.repository.drivers_of(study.study.id, running=True)
    heard = listening(drivers)
    asleep = not heard and asked.kind == "resume"
    if asleep and found.can_resume(study) and found.queue is not None and study.folder is not None:
        found.queue.resume(study.folder, user)
        return CommandOut(kind=asked.kind, listening=1)
    with _writing(study) as repository:
        repository.add_command(study.study.id, asked.kind)
    return CommandOut(kind=asked.kind, listening=heard)


@router.post("/api/v1/studies/{key}/tries")
def add_try(asked: TryIn, study: SnapshotDep, found: SharedDep, user: UserDep) -> CommandOut:
    """Have a configuration evaluated next; a search without a driver keeps it for its next one.

    Raises:
        ConfigValueError, UnknownConfigKeyError: no such configuration.
        ForbiddenError: the study is another user's.
    """
    found.require_change(study, user)
    fields = asked.fields
    if asked.trial is not None:
        known = study.repository.trials_by_number(study.study.id, [asked.trial])
        if not known:
            raise NotFoundError("the study has no such trial", where=f"trial {asked.trial}")
        fields = {**known[0].qconfig, **fields}
    heard = listening(study.repository.drivers_of(study.study.id, running=True))
    with _writing(study) as repository:
        wish(repository, study.study, fields, user.name)
    return CommandOut(kind=TRY, listening=heard)


@router.post("/api/v1/studies/{key}/notes", status_code=204)
def write_note(given: NoteIn, study: SnapshotDep, found: SharedDep, user: UserDep) -> None:
    """Note and tags of a trial, or of the study, in place of an earlier one.

    Raises:
        ForbiddenError: the study is another user's.
    """
    found.require_change(study, user)
    if given.trial is not None and given.trial not in {p.number for p in study.points}:
        raise NotFoundError("the study has no such trial", where=f"trial {given.trial}")
    data = {"note": given.note, "tags": given.tags, "author": user.name}
    with _writing(study) as repository:
        repository.add_event(study.study.id, NOTE, trial=given.trial, data=data, newest=True)


@router.post("/api/v1/studies/{key}/delete", status_code=204)
def delete_study(given: DeleteIn, study: SnapshotDep, found: SharedDep, user: UserDep) -> None:
    """Forget a study with all its trials; of a run folder also its files.

    Raises:
        SettingsError: the name is another, or it is being searched.
        ForbiddenError: it is another user's.
    """
    found.require_change(study, user)
    name = study.study.name
    if given.name != name:
        raise SettingsError("the name is not the study's", where="name", fix=f"write {name!r}")
    if study.source.folder is not None:
        storage = None
    else:
        storage = study.source.url
    folder = None if study.folder is None else study.folder.path
    if found.queue is None:
        delete(folder, storage=storage, study=name)
        return
    job = found.job_of(study)
    if job is not None:
        own = found.queue.options.folder_of(job).path
        folder = own if own.is_dir() or storage is None else None
    found.queue.delete(job, lambda: delete(folder, storage=storage, study=name))


@router.post(SESSION_PATH, status_code=204, responses={204: {"description": "cookie set"}})
def open_session(given: SessionIn, found: SharedDep, request: Request) -> Response:
    """Exchange the token for a cookie that scripts cannot read.

    Raises:
        WrongTokenError: it is another.
    """
    policy = found.policy
    response = Response(status_code=204)
    if not policy.asks_token:
        return response
    if policy.user_of_token(given.token) is None:
        raise WrongTokenError(
            "the token is wrong", where="token", fix="see what the server printed"
        )
    response.set_cookie(
        policy.cookie,
        session_of(given.token),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response
