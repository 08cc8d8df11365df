"""The queue: uploads, submissions and positions."""

from __future__ import annotations

import json
import time
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from qsearch.dashboard.routes.artifacts import Sha256
from qsearch.dashboard.schemas import API_VERSION, ErrorOut, Out
from qsearch.dashboard.security import SUBMIT_PATH, UPLOAD_PATH
from qsearch.dashboard.sources import NotFoundError, study_key
from qsearch.dashboard.state import Shared, SharedDep, UserDep
from qsearch.errors import StoreError
from qsearch.server.queue import ForbiddenError, JobQueue
from qsearch.server.submission import FILES, NAMES, STUDY_NAME, ServerOptions
from qsearch.server.tokens import User
from qsearch.server.uploads import DATA, HIDDEN, KINDS
from qsearch.store.records import Job, Upload
from workers.metrics.registry import costs
from workers.metrics.size import FORMS

router = APIRouter(tags=["queue"])

Name = Annotated[str, Path(pattern=STUDY_NAME)]
Kind = Annotated[str, Query(pattern=f"^({KINDS})$")]


_SHA256 = 64
_DATA = rf"^[0-9a-f]{{64}}(\.({'|'.join(DATA)}))?$"
_FILE = rf"^[^/\\\t\n{HIDDEN}]{{1,255}}$"


class UploadedOut(Out, of=Upload, shows="kind bytes"):
    """A file that the user uploaded; a zip counts as what it unpacked to."""

    upload: str


class UploadOut(UploadedOut):
    """An uploaded file that was read and can be used."""

    about: dict[str, Any]


class JobIn(BaseModel):
    """A study to queue: further fields are settings of ``qsearch launch``, by their names.

    ``model`` is a shipped one or an upload, ``SHA256.KIND``; so are ``calib`` and ``eval``.
    ``space``, ``preprocess`` and ``hw`` hold what their files hold. ``files`` are the user's names
    of the uploads, for messages. Without a ``name`` the server makes one from ``stem``.
    """

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(pattern=r"^([a-z0-9_]{1,40}|[0-9a-f]{64}(\.onnx)?)$")] = "digits"
    name: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    stem: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,55}$")] = "study"
    calib: Annotated[str, Field(pattern=_DATA)] | None = None
    eval: Annotated[str, Field(pattern=_DATA)] | None = None
    files: dict[Literal["model", "calib", "eval"], Annotated[str, Field(pattern=_FILE)]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for ``launch``; a bare hash is an .onnx model or .npz data."""
        kinds = {"model": "onnx", "calib": "npz", "eval": "npz"}
        found = {**(self.model_extra or {}), **{name: getattr(self, name) for name in kinds}}
        found |= {NAMES: self.files} if self.files else {}
        for name, kind in kinds.items():
            if len(found[name] or "") == 64:
                found[name] = f"{found[name]}.{kind}"
        return found


class JobOut(
    Out,
    of=Job,
    shows="name owner settings trials state attempts cancelled exit_code "
    "created_at started_at finished_at retry_at",
):
    """A study in the queue: queued, running, done, failed or cancelled.

    ``position`` 1 is next. ``study`` is the key of the study once it is there, and ``finished``
    counts those of its ``trials`` that ended. ``attempts`` counts
    drivers that died on it; ``retry_at`` is when the next one starts. ``exit_code`` is that of
    ``qsearch launch``: 0, or 1 where no trial kept the limits. ``seconds`` is how long its last
    driver ran. ``mine``: the user may change it, and is
    told ``error`` and the names of files.
    """

    mine: bool
    position: int | None
    finished: int | None
    seconds: float
    study: str | None
    error: ErrorOut | None


class QueueOut(Out, of=ServerOptions, shows="max_studies workers pools"):
    """Resources of a server for its studies; ``workers`` is the most that one study gets.

    ``costs`` are what a study may minimise, with their names for people; ``forms`` what it may be
    for.
    """

    costs: dict[str, str]
    forms: list[str]
    max_upload_bytes: int


class MeOut(Out, of=User, shows="name may max_studies"):
    """User of the request; ``max_studies`` is how many studies may wait or run at a time."""

    api: str
    queue: QueueOut | None


@router.get("/api/v1/me")
def get_me(found: SharedDep, user: UserDep) -> MeOut:
    """The user, and the user's rights and limit."""
    queue = found.queue
    return MeOut.of(
        user,
        api=API_VERSION,
        queue=None
        if queue is None
        else QueueOut.of(
            queue.options,
            costs={cost.option: cost.words for cost in costs() if cost.needs != "hardware"},
            forms=list(FORMS),
            max_upload_bytes=found.policy.max_upload_bytes,
        ),
    )


# Uploads ----------------------------------------------------------------------------------------


@router.post(UPLOAD_PATH, status_code=201)
async def upload(request: Request, found: SharedDep, user: UserDep, kind: Kind) -> UploadOut:
    """The bytes of a model or of data; kept if they can be read. A zip holds a folder of images."""
    queue = require_queue(found)
    await found.uploading(queue.uploads.require_room, found.policy.max_upload_bytes)
    file, digest = await queue.uploads.receive(request.stream())
    try:
        about, kept = await found.uploading(_keep, found, queue, user, (file, digest, kind))
    finally:
        file.unlink(missing_ok=True)
    return UploadOut.of(kept, upload=digest, about=about)


@router.get(UPLOAD_PATH)
def list_uploads(found: SharedDep, user: UserDep) -> list[UploadedOut]:
    """List the files that the user uploaded, oldest first."""
    queue = require_queue(found)
    listed = queue.repository.uploads_of(queue.server, user.name)
    return [UploadedOut.of(one, upload=one.sha256) for one in listed]


@router.get(UPLOAD_PATH + "/{sha256}")
def get_upload(sha256: Sha256, kind: Kind, found: SharedDep, user: UserDep) -> UploadedOut:
    """Tell whether the user uploaded this file before: then it needs not be sent again."""
    kept = require_queue(found).uploads.owned(user, sha256, kind)
    if kept is None:
        raise NotFoundError("you have not uploaded this file", where=sha256)
    return UploadedOut.of(kept, upload=sha256)


@router.post(UPLOAD_PATH + "/{sha256}/delete", status_code=204)
def delete_upload(sha256: Sha256, found: SharedDep, user: UserDep) -> None:
    """Forget a file that no study of the user needs any more."""
    require_queue(found).forget_upload(user, sha256)


# Jobs -------------------------------------------------------------------------------------------


@router.post(SUBMIT_PATH, status_code=201)
def submit(asked: JobIn, found: SharedDep, user: UserDep) -> JobOut:
    """Queue a study with the settings of ``qsearch launch``; files are named by their uploads.

    The same submission once more goes on with the study that is there.
    """
    queue = require_queue(found)
    job = queue.submit(user, asked.settings, name=asked.name, stem=asked.stem)
    return _told(found, user, job)


@router.get("/api/v1/jobs")
def list_jobs(
    found: SharedDep, user: UserDep, ended: Annotated[int, Query(ge=0, le=1000)] = 50
) -> list[JobOut]:
    """All jobs that wait or run, in the order in which they run, then the last that ended."""
    jobs = require_queue(found).jobs()
    running = [(job, place) for job, place in jobs if job.state == "running"]
    waiting = sorted((each for each in jobs if each[1] is not None), key=lambda each: each[1] or 0)
    over = [each for each in jobs if each[0].state not in ("queued", "running")]
    over.sort(key=lambda each: -(each[0].finished_at or 0.0))
    shown = [*running, *waiting, *over[:ended]]
    return [_job_out(found, user, job, place) for job, place in shown]


@router.get("/api/v1/jobs/{name}")
def get_job(name: Name, found: SharedDep, user: UserDep) -> JobOut:
    """One job: where it stands, why it failed, and the key of its study."""
    return _told(found, user, require_queue(found).job(name))


@router.post("/api/v1/jobs/{name}/cancel")
def cancel_job(name: Name, found: SharedDep, user: UserDep) -> JobOut:
    """End a job; a running one first writes the best module so far."""
    return _told(found, user, require_queue(found).cancel(name, user))


def require_queue(found: Shared) -> JobQueue:
    """The queue of this server.

    Raises:
        ForbiddenError: it has none.
    """
    if found.queue is None:
        raise ForbiddenError(
            "searches cannot be started from here",
            where="qsearch dashboard",
            fix="start it with --allow-launch, or start `qsearch serve`",
        )
    return found.queue


def _keep(
    found: Shared, queue: JobQueue, user: User, sent: tuple[FilePath, str, str]
) -> tuple[dict[str, Any], Upload]:
    """Read what was sent in a process of its own, then give it its name."""
    file, digest, kind = sent
    about = json.loads(found.uploaded.ask(kind, file))
    size = about.pop("unpacked", file.stat().st_size)
    if kind != "zip":
        return about, queue.uploads.keep(user, file, digest, kind, size)
    queue.uploads.require_room(size)
    with queue.uploads.unpacked() as name:
        folder = FilePath(name).absolute()
        about = json.loads(found.uploaded.ask("unpack", file, out=str(folder)))
        return about, queue.uploads.keep(user, folder, digest, kind, size)


def _told(found: Shared, user: User, job: Job) -> JobOut:
    if job.state == "queued":
        jobs = require_queue(found).jobs()
    else:
        jobs = []
    places = {each.id: place for each, place in jobs}
    return _job_out(found, user, job, places.get(job.id))


def _job_out(found: Shared, user: User, job: Job, place: int | None) -> JobOut:
    key, finished = _study_of(found, job)
    mine = user.owns(job.owner)
    left_out: set[str] = set()
    if not mine:  # an upload goes by its hash, and that and its name are its owner's
        left_out = {NAMES, *(n for n in FILES if len(str(job.settings.get(n))) > _SHA256)}
    return JobOut.of(
        job,
        settings={name: v for name, v in job.settings.items() if name not in left_out},
        mine=mine,
        position=place,
        finished=finished,
        seconds=_ran_s(job),
        study=key,
        error=ErrorOut.of(job.failure) if mine and job.failure is not None else None,
    )


def _ran_s(job: Job) -> float:
    if job.started_at is None or job.state == "queued":
        return 0.0
    return (job.finished_at or time.time()) - job.started_at


def _study_of(found: Shared, job: Job) -> tuple[str | None, int | None]:
    """Key and finished trials of a job's study, once its driver has made it."""
    options = require_queue(found).options
    if options.storage is not None:
        folder = None
    else:
        folder = options.folder_of(job)
    if job.started_at is None or (folder is not None and not folder.database.is_file()):
        return None, None
    source = found.sources.of(None if folder is None else folder.path)
    try:
        repository = found.sources.repository(source)
        study = repository.find_study(job.name)
        if study is None or (folder is None and study.id != job.study_id):
            return None, None
        return study_key(source, study), repository.count_trials(study.id).finished
    except StoreError:  # a driver is just making it
        return None, None
