"""What the workers of the pool tests run: requests say what happens to them."""

from __future__ import annotations

import importlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.errors import DatasetError
from workers.messages import Handle
from workers.worker import Fetch

SIGNALS = {"die": signal.SIGKILL, "crash": signal.SIGSEGV, "abort": signal.SIGABRT}


@dataclass(frozen=True, slots=True)
class Ask:
    """``do`` on ``value``; ``folder`` is where attempts leave their marks."""

    do: str
    value: Any = None
    folder: str = ""
    large: Any | Handle = None


class Runner:
    """Runs Ask requests."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def run(self, request: Ask) -> Any:
        if request.do == "double":
            return request.value * 2
        if request.do == "pid":
            return os.getpid()
        if request.do == "value of":
            return importlib.import_module(request.value).VALUE
        if request.do == "environment":
            return os.environ.get(request.value)
        if request.do == "sum":
            value = (
                self.fetch(request.large) if isinstance(request.large, Handle) else request.large
            )
            return float(value.sum())
        if request.do in ("sleep", "sleep once"):
            first = not list(Path(request.folder).iterdir())
            (Path(request.folder) / f"running-{os.getpid()}").touch()
            if first or request.do == "sleep":
                time.sleep(request.value)
            return request.value
        if request.do == "meet":
            folder = Path(request.folder)
            (folder / f"running-{os.getpid()}").touch()
            end = time.monotonic() + 600
            while len(list(folder.iterdir())) < request.value and time.monotonic() < end:
                time.sleep(0.01)
            return request.value
        if request.do == "refuse":
            raise DatasetError("no such thing", where="here", fix="bring it")
        if request.do == "end":
            os._exit(request.value)
        if request.do == "bug":
            raise ZeroDivisionError("a bug")
        if request.do in SIGNALS:
            attempts = len(list(Path(request.folder).iterdir()))
            (Path(request.folder) / f"attempt-{attempts}-{os.getpid()}").touch()
            if attempts < request.value:
                os.kill(os.getpid(), SIGNALS[request.do])
                time.sleep(600)
            return attempts
        raise ValueError(request.do)
