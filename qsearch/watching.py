"""Looking at studies: the dashboard, and the report that is one file. Part of ``qsearch.api``."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qsearch.settings import Settings

PathLike = str | os.PathLike[str]

DEFAULT_FOLDER: Final = "runs"
"""Where ``qsearch launch`` puts run folders."""
DEFAULT_PORT: Final = 8090


def dashboard(
    folder: PathLike | None = None,
    *,
    storage: str | None = None,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    allow_launch: bool = False,
    launch_pool: str = "process",
    max_upload: str | int = "256M",
) -> None:
    """Serve the dashboard until the process is told to stop.

    Args:
        folder: a run folder, or a folder of run folders; None is ``runs``.
        storage: database to show instead; None is QSEARCH_STORAGE where no folder is given.
        host: address to listen on; any but this machine's own needs a token.
        port: 0 takes one that is free.
        token: what clients must know; None is QSEARCH_TOKEN.
        allow_hosts: further names under which it may be asked.
        allow_launch: searches may be started from the page.
        launch_pool: where the workers of such searches run.
        max_upload: largest upload, in bytes or "256M".
    Raises:
        SettingsError: a value that cannot be used, a port that is taken, a host without a token.
        StoreError: the storage is no URL, or a file whose folder is not there.
    """
    from qsearch.dashboard.app import DashboardOptions
    from qsearch.dashboard.security import Policy
    from qsearch.dashboard.serving import serve
    from qsearch.errors import SettingsError
    from qsearch.settings import parse_bytes
    from qsearch.store.engine import require_folder

    if storage is None and folder is None:
        storage = os.environ.get("QSEARCH_STORAGE") or None
    if storage is not None:
        # The file may be one that a search will make; a search makes no folder for it.
        require_folder(storage)
    if folder is not None and not Path(folder).is_dir():
        name = os.fspath(folder)
        found = Path(folder).exists()
        raise SettingsError(
            f"{name} is a file, not a folder" if found else f"there is no folder {name}",
            where="DIR",
            fix="give a run folder, a folder of run folders, or --storage",
        )
    try:
        limit = parse_bytes(max_upload)
    except ValueError as error:
        raise SettingsError(
            f"{max_upload!r} is no size", where="--max-upload", fix="256M"
        ) from error
    policy = Policy(
        host=host,
        token=token or os.environ.get("QSEARCH_TOKEN") or None,
        allowed_hosts=tuple(name.lower() for name in allow_hosts),
        max_upload_bytes=limit,
    )
    root = Path(folder) if folder is not None else Path(DEFAULT_FOLDER)
    serve(DashboardOptions(root, storage, policy, allow_launch, launch_pool), port)


@contextlib.contextmanager
def dashboard_beside(settings: Settings, wanted: bool = True) -> Iterator[None]:
    """A dashboard of the search that the block runs, in a process that ends with it.

    It listens on this machine only, on port 8090 or any that is free, and says where on stderr.

    Args:
        wanted: False starts none.
    """
    if not wanted:
        yield
        return
    from qsearch.model_source import find_model
    from qsearch.search.launch import run_folder

    folder = run_folder(settings, find_model(settings.model)).path
    folder.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k != "QSEARCH_STORAGE"}
    words = [str(folder)]
    if settings.storage is not None:
        # Others on this machine see command lines, not environments.
        environment["QSEARCH_STORAGE"] = settings.storage
        words = []
    port = str(_free_port())
    command = [sys.executable, "-m", "qsearch", "dashboard", *words, "--port", port]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    print(f"dashboard  http://127.0.0.1:{port}/", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    """The usual port, or any where another process has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(
    folder: PathLike | None = None,
    out: PathLike = "report.html",
    *,
    storage: str | None = None,
    study: str | None = None,
    plots: PathLike | None = None,
) -> list[Path]:
    """Write a study as one HTML file that needs nothing else; what was written.

    Args:
        folder: run folder.
        out: the HTML file.
        storage: database, instead of a run folder's.
        study: name, where there are several.
        plots: folder for the plots as SVG files; None writes none.
    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
        RunFolderError: a file cannot be written.
    """
    from qsearch.report.html import write_report
    from qsearch.study_address import find_study

    address = find_study(None if folder is None else Path(folder), storage, study)
    return write_report(address, Path(out), None if plots is None else Path(plots))
