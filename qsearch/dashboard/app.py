"""create_app: the guard, the API, one static page for every address of the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect

from compiler.errors import CompilerError
from qsearch.dashboard.inspection import Inspection
from qsearch.dashboard.metrics import registry_of
from qsearch.dashboard.page_files import PageFiles
from qsearch.dashboard.routes import artifacts, commands, events, jobs, studies, trials
from qsearch.dashboard.routes.studies import get_points, get_study, importances_kept, list_failures
from qsearch.dashboard.routes.trials import list_trials
from qsearch.dashboard.schemas import API_VERSION, ErrorOut
from qsearch.dashboard.security import HEALTH_PATH, METRICS_PATH, READY_PATH, Guard, Policy
from qsearch.dashboard.snapshots import KEPT, Snapshots, StudyFilter
from qsearch.dashboard.sources import Sources
from qsearch.dashboard.state import Shared
from qsearch.errors import SearchError
from qsearch.server.queue import JobQueue
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import OPERATOR

PAGES: Final = (
    "/",
    "/studies/{key}",
    "/studies/{key}/trials/{number}",
    "/studies/{key}/module",
    "/launch",
    "/queue",
    "/compare",
)
_DESCRIPTION: Final = "/api/v1/openapi.json"
_AS_THEY_ARE: Final = ("application/octet-stream", "image/png")
"""Answers that are sent uncompressed: downloads tell their size."""
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorOut}
    for status in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 507)
}


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """Studies that a dashboard shows, and the users that may see it.

    Attributes:
        root: a run folder, or a folder of run folders.
        storage: a database that is shown beside those in the folders.
        policy: hosts, token, upload size.
        server: how searches run that users start; None where nobody may.
    """

    root: Path = Path("runs")
    storage: str | None = None
    policy: Policy = field(default_factory=Policy)
    server: ServerOptions | None = None
    inspection: Inspection = field(default_factory=Inspection)


def create_app(options: DashboardOptions) -> FastAPI:
    """The application; its only state are the caches in ``app.state.shared``."""
    uploaded = Inspection(options.inspection.memory_bytes, options.inspection.time_s)
    server = options.server
    queue = None if server is None else JobQueue(server)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="qsearch-exports-") as exports:
            submitted = None if server is None else server.studies
            sources = Sources(options.root, options.storage, submitted)
            if queue is not None:
                queue.open()
            app.state.shared = Shared(
                policy=options.policy,
                sources=sources,
                snapshots=Snapshots(sources),
                inspection=options.inspection,
                queue=queue,
                exports=Path(exports),
                uploaded=uploaded,
            )
            # The first reading of a long study takes longest: it is done before somebody asks.
            reading = asyncio.create_task(asyncio.to_thread(warm, app.state.shared))
            try:
                yield
            finally:
                for threads in (app.state.shared.preparer, app.state.shared.uploads):
                    threads.shutdown(wait=False, cancel_futures=True)
                await reading
                if queue is not None:
                    queue.close()
                sources.close()
                for inspection in (options.inspection, uploaded):
                    inspection.close()

    app = FastAPI(
        title="qsearch",
        version=API_VERSION,
        description="Studies of quantization searches. Fractions are 0..1, times UTC seconds. "
        "Errors are {what, where, fix}.",
        openapi_url=_DESCRIPTION,
        # Swagger's page loads scripts from elsewhere: the description is served, not that page.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses=_ERRORS,
    )
    app.state.queue = queue
    app.add_middleware(
        GZipMiddleware, minimum_size=1024, compresslevel=4, exclude_content_types=_AS_THEY_ARE
    )
    # Added last, so it is asked first.
    app.add_middleware(Guard, policy=options.policy)
    for part in (studies, trials, events, commands, artifacts, jobs):
        app.include_router(part.router)
    _add_errors(app, _add_pages(app))
    return app


def _add_pages(app: FastAPI) -> PageFiles:
    static = Path(str(files("qsearch.dashboard").joinpath("static")))
    web = Path(str(files("qsearch.report").joinpath("web")))
    page = PageFiles({"": static, "web/": web})

    @app.get(HEALTH_PATH, tags=["health"])
    def healthz() -> dict[str, str]:
        """Confirm that the server answers; asks no token and tells nothing else."""
        return {"status": "ok"}

    @app.get(READY_PATH, tags=["health"])
    def readyz(request: Request) -> dict[str, str]:
        """Answer once the databases do, the queue's too; ask no token and tell nothing else.

        Raises:
            StoreError: one does not.
        """
        found: Shared = request.app.state.shared
        for _ in found.sources.studies():
            break
        if found.queue is not None:
            found.queue.jobs()
        return {"status": "ready"}

    registry = registry_of(lambda: cast(Shared, app.state.shared))

    @app.get(METRICS_PATH, tags=["health"], response_class=PlainTextResponse)
    def metrics(request: Request) -> Response:
        """Figures for Prometheus: studies, trials, workers, queue, seconds, bytes, losses."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=kind)

    app.add_api_route("/favicon.ico", page.favicon, include_in_schema=False)
    app.add_api_route("/static/{version}/{name:path}", page.named, include_in_schema=False)
    for path in PAGES:
        app.add_api_route(path, page.index, include_in_schema=False)
    return page


def _add_errors(app: FastAPI, page: PageFiles) -> None:
    @app.exception_handler(CompilerError)
    async def on_ours(_request: Request, error: CompilerError) -> JSONResponse:
        if isinstance(error, SearchError):
            status = error.http_status
        else:
            status = SearchError.http_status
        return _told(status, error.what, error.where, error.fix)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _told(422, _shown(first), where, _fix_of(first))

    @app.exception_handler(ClientDisconnect)
    async def on_gone(_request: Request, _error: ClientDisconnect) -> JSONResponse:
        return _told(400, "the request ended early", None, "send it again")

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
            # A mistyped address in a browser: the page says so and leads back.
            answer = await page.index()
            answer.status_code = 404
            return answer
        if error.status_code in (404, 405):
            fix = f"see {_DESCRIPTION}"
        else:
            fix = None
        return _told(error.status_code, str(error.detail), None, fix)

    @app.exception_handler(Exception)
    async def on_bug(_request: Request, error: Exception) -> JSONResponse:
        # What it says may hold paths and values: the log has it, the answer does not.
        return _told(500, f"unforeseen {type(error).__name__}", None, "see the server's log")


def _shown(error: Mapping[str, Any]) -> str:
    """Explain the fault of one value of a request, with the value where it is a short one."""
    given = error.get("input")
    what = str(error["msg"])
    simple = isinstance(given, str | int | float) and error["type"] != "json_invalid"
    secret = "token" in error["loc"]
    if simple and not secret:
        return f"{what}, not {str(given)[:80]!r}"
    return what


def _fix_of(error: Mapping[str, Any]) -> str:
    """Name a cure for one value of a request."""
    name = error["loc"][-1]
    kind = str(error["type"])
    limits = error.get("ctx", {})
    if kind == "missing":
        return f"add {name}"
    if kind == "extra_forbidden":
        return f"leave out {name}"
    if kind == "json_invalid":
        return "send one JSON object as the body"
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    told = [f"{word} {limits[key]}" for key, word in bounds.items() if key in limits]
    if "expected" in limits:
        told = [str(limits["expected"])]
    if "pattern" in limits:
        told = [f"a text that matches {limits['pattern']}"]
    if told:
        return f"give {' and '.join(told)}"
    return f"see {name} in {_DESCRIPTION}"


def _told(status: int, what: str, where: str | None, fix: str | None) -> JSONResponse:
    told = ErrorOut(what=what, where=where, fix=fix)
    return JSONResponse(told.model_dump(), status_code=status)


# The first page of a long study -----------------------------------------------------------------


WARM_PAGES: Final = 8
"""Studies whose pages are answered in advance; further ones are only read."""


def warm(found: Shared) -> None:
    """Read the newest studies, and answer what their pages ask first.

    A study that cannot be read is skipped: its own request gives the error.
    """
    with contextlib.suppress(CompilerError):
        read, *_ = found.snapshots.page(0, KEPT, StudyFilter())
        for study in read[:WARM_PAGES]:
            get_study(study, found, OPERATOR)
            list_trials(study, sort="-number")
            list_failures(study)
        for study in read[:WARM_PAGES]:
            get_points(study)
            importances_kept(study, study.measures.primary)
