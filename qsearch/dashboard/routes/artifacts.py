"""The module that a study emitted: drawing, text, proof, downloads; by known names, not paths."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.sources import NotFoundError, elsewhere
from qsearch.dashboard.state import SharedDep, SnapshotDep, UserDep, slug
from qsearch.server.queue import ForbiddenError

router = APIRouter(prefix="/api/v1/studies/{key}", tags=["module"])

Groups = Literal["none", "fused", "opu", "opu_q", "npu"]
File = Literal["best.qmod", "qconfig.json", "report.json"]
Format = Literal["c", "onnx", "qdq"]
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.get("/module/graph")
async def get_graph(
    study: SnapshotDep, found: SharedDep, request: Request, groups: Groups = "fused"
) -> Response:
    """Functions as boxes and edges with places, and what a click on each box shows."""
    return await found.inspection.answer(request, "module", _module(study), groups=groups)


@router.get("/module/text")
async def get_text(study: SnapshotDep, found: SharedDep, request: Request) -> Response:
    """The IR text and what the file says of its making."""
    return await found.inspection.answer(request, "text", _module(study))


@router.get("/module/proof")
async def get_proof(study: SnapshotDep, found: SharedDep, request: Request) -> Response:
    """Prove the module of the study, derived again from the file."""
    return await found.inspection.answer(request, "proof", _module(study))


@router.get("/module/times")
async def get_times(study: SnapshotDep, found: SharedDep, request: Request) -> Response:
    """Measure every layer on the integer engine of this machine."""
    return await found.inspection.answer(request, "times", _module(study))


@router.get("/files/{name}")
def download(study: SnapshotDep, name: File, found: SharedDep, user: UserDep) -> FileResponse:
    """A file of the run folder by its known name.

    Raises:
        ForbiddenError: the report names files and folders of its owner and of the server.
    """
    if name == "report.json" and not found.may_see_hashes(study, user):
        raise ForbiddenError(
            f"the report of {study.study.name!r} is its owner's",
            where="Authorization",
            fix="ask its owner, or the server's operator",
        )
    folder = study.folder
    path = None if folder is None else folder.path / name
    if path is None or not path.is_file() or path.is_symlink():
        raise NotFoundError(
            f"the study has no {name} yet",
            where=study.study.name,
            fix="a search writes it when it ends",
        )
    return _attachment(path, name)


@router.get("/export/{format}")
async def export(
    study: SnapshotDep, found: SharedDep, request: Request, format: Format
) -> FileResponse:
    """The module as C source, ONNX on integers or as QDQ, zipped."""
    out = str(found.exports.absolute())
    answer = await found.inspection.answer(
        request, "export", _module(study), format=format, out=out
    )
    path = FilePath(json.loads(bytes(answer.body))["zip"])
    return _attachment(path, f"{slug(study.study.name)}-{format}.zip")


@router.get("/artifacts/{sha256}")
def get_artifact(study: SnapshotDep, found: SharedDep, sha256: Sha256) -> FileResponse:
    """A file of the study by its content's sha256."""
    kinds = {each.sha256: each.kind for each in study.repository.artifacts_of(study.study.id)}
    kind = kinds.get(sha256)
    store = found.sources.artifacts(study.source, study.study)
    if kind is None or store is None or not store.has(kind, sha256):
        raise NotFoundError("the study has no such artefact", where=sha256)
    path = store.path(kind, sha256)
    return _attachment(path, path.name)


def _attachment(path: FilePath, name: str) -> FileResponse:
    return FileResponse(path, filename=name, media_type="application/octet-stream")


def _module(study: Snapshot) -> FilePath:
    if study.module is None:
        raise elsewhere("the study's module is not", study.study.name)
    return study.module
