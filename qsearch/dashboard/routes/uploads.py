"""Starting a search from the page; only where ``--allow-launch`` was said."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from qsearch.dashboard.launcher import Starter
from qsearch.dashboard.schemas import LaunchIn, LaunchOut, UploadOut
from qsearch.dashboard.security import UPLOAD_PATH
from qsearch.dashboard.state import Shared, SharedDep
from qsearch.errors import SearchError

router = APIRouter(tags=["launch"])

_SUFFIXES = {"onnx": ".onnx", "npz": ".npz"}


class ForbiddenError(SearchError):
    """The server was started without this ability."""


@router.post(UPLOAD_PATH, status_code=201)
async def upload(
    request: Request, found: SharedDep, kind: Annotated[str, Query(pattern="^(onnx|npz)$")]
) -> UploadOut:
    """The bytes of a model or of data; kept if they can be read."""
    starter = _starter(found)
    file, digest = await starter.receive(request.stream())
    try:
        about = await run_in_threadpool(_about, found, kind, file)
        size = file.stat().st_size
        starter.keep(file, digest, _SUFFIXES[kind])
    finally:
        file.unlink(missing_ok=True)
    return UploadOut(upload=digest, kind=kind, bytes=size, about=about)  # type: ignore[arg-type]


@router.post("/api/v1/studies", status_code=201)
def launch(asked: LaunchIn, found: SharedDep) -> LaunchOut:
    """Start ``qsearch launch`` on an uploaded model, or on the one that ships."""
    starter = _starter(found)
    model = asked.model if asked.model == "digits" else str(starter.path(asked.model, ".onnx"))
    words = ["--model", model, "--trials", str(asked.trials), "--max-drop", asked.max_drop]
    words += ["--sampler", asked.sampler, "--workers", str(asked.workers)]
    words += ["--seed", str(asked.seed)]
    for flag, given in (("--calib", asked.calib), ("--eval", asked.eval)):
        if given is not None:
            words += [flag, str(starter.path(given, ".npz"))]
    if asked.metric is not None:
        words += ["--metric", asked.metric]
    return LaunchOut(name=asked.name, pid=starter.launch(asked.name, words))


def _starter(found: Shared) -> Starter:
    if found.starter is None:
        raise ForbiddenError(
            "searches cannot be started from here",
            where="qsearch dashboard",
            fix="start it with --allow-launch",
        )
    return found.starter


def _about(found: Shared, kind: str, file: Any) -> dict[str, Any]:
    import json

    about: dict[str, Any] = json.loads(found.inspection.ask(kind, file))
    return about
