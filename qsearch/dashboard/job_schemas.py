"""What the API says of the queue: uploads, submissions, jobs, users."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qsearch.dashboard.schemas import ErrorOut, In, Out
from qsearch.server.submission import BEFORE, FILES, NAMES, STUDY_NAME
from qsearch.server.uploads import DATA, HIDDEN
from qsearch.store.records import Job

_SHA256 = 64
_DATA = rf"^[0-9a-f]{{64}}(\.({'|'.join(DATA)}))?$"
_FILE = rf"^[^/\\\t\n{HIDDEN}]{{1,255}}$"


class UploadedOut(Out):
    """A file that the user uploaded; a zip counts as what it unpacked to."""

    upload: str
    kind: str
    bytes: int


class UploadOut(UploadedOut):
    """An uploaded file that was read and can be used."""

    about: dict[str, Any]


class JobIn(BaseModel):
    """A study to queue: further fields are settings of ``qsearch launch``, by their names.

    ``model`` is a shipped one or an upload, ``SHA256.KIND``; so are ``calib`` and ``eval``.
    ``space``, ``preprocess`` and ``hw`` hold what their files hold. ``files`` are the user's names
    of the uploads, for messages. Without a ``name`` the server makes one from ``stem``. Greater
    priorities go first.
    """

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(pattern=r"^([a-z0-9_]{1,40}|[0-9a-f]{64}(\.onnx)?)$")] = "digits"
    name: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    stem: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,55}$")] = "study"
    priority: Annotated[int, Field(ge=-10, le=10)] = 0
    calib: Annotated[str, Field(pattern=_DATA)] | None = None
    eval: Annotated[str, Field(pattern=_DATA)] | None = None
    files: dict[Literal["model", "calib", "eval"], Annotated[str, Field(pattern=_FILE)]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """What ``launch`` would be told; a bare hash is an .onnx model or .npz data."""
        kinds = {"model": "onnx", "calib": "npz", "eval": "npz"}
        found = {**(self.model_extra or {}), **{name: getattr(self, name) for name in kinds}}
        found |= {NAMES: self.files} if self.files else {}
        for name, kind in kinds.items():
            if len(found[name] or "") == 64:
                found[name] = f"{found[name]}.{kind}"
        return found


class PriorityIn(In):
    """A new priority; among the studies of a user a greater one goes first."""

    priority: Annotated[int, Field(ge=-10, le=10)]


class JobOut(
    Out,
    of=Job,
    shows="name owner priority settings trials state attempts seconds cancelled exit_code "
    "created_at started_at finished_at retry_at",
):
    """A study in the queue: queued, running, done, failed or cancelled.

    ``position`` 1 is next. ``study`` is the key of the study once it is there, and ``finished``
    counts those of its ``trials`` that ended. ``attempts`` counts
    drivers that died on it; ``retry_at`` is when the next one starts. ``exit_code`` is that of
    ``qsearch launch``: 0, or 1 where no trial kept the limits. ``mine``: the user may change it.
    """

    mine: bool
    position: int | None
    finished: int | None
    study: str | None
    error: ErrorOut | None

    @classmethod
    def of_job(cls, job: Job, *, mine: bool, **given: Any) -> JobOut:
        """From the store; ``given`` are position, study and finished."""
        # An upload goes by its hash, and that is its owner's; so is a webhook.
        left_out = () if mine else FILES
        secret = {name for name in left_out if len(str(job.settings.get(name))) > _SHA256}
        secret |= set() if mine else {"notify"}
        return cls.of(
            job,
            settings={k: v for k, v in job.settings.items() if k != BEFORE and k not in secret},
            mine=mine,
            error=None if job.failure is None else ErrorOut.of(job.failure),
            **given,
        )


class QueueOut(Out):
    """What a server runs its studies on; ``workers`` is the most that one study gets.

    ``costs`` are what a study may minimise, with their names for people; ``forms`` what it may be
    for.
    """

    max_studies: int
    workers: int
    pools: list[str]
    costs: dict[str, str]
    forms: list[str]
    max_upload_bytes: int


class MeOut(Out):
    """Who asks. ``quota`` and ``used`` are of bytes now, trials and seconds in 24 hours."""

    name: str
    may: Literal["read", "submit"]
    api: str
    quota: dict[str, float | None]
    used: dict[str, float]
    queue: QueueOut | None
