"""Facts about a process of a pool: its code version, its import path, CPU time and memory.

Workers that run other code would give other scores, so pools refuse them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import resource
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

_PACKAGES = ("compiler", "workers")


@functools.cache
def code_version() -> str:
    """Python version and a hash over the sources of ``compiler`` and ``workers``."""
    home = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((home / package).rglob("*")):
            if path.suffix in {".py", ".c", ".h"}:
                digest.update(path.relative_to(home).as_posix().encode())
                digest.update(path.read_bytes())
    return f"python {sys.version_info.major}.{sys.version_info.minor}, {digest.hexdigest()[:16]}"


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that read a model and compute its float values."""
    # Of the modules: onnxruntime-gpu is a distribution of another name.
    return {name: import_module(name).__version__ for name in ("numpy", "onnx", "onnxruntime")}


def other_versions(recorded: object) -> str:
    """Return a sentence on the libraries of a file that have another version here, or "".

    Args:
        recorded: ``library_versions`` as a file holds them, which is not trusted.
    """
    if not isinstance(recorded, Mapping):
        return ""
    here = library_versions()
    given = {name: str(recorded.get(name, version)) for name, version in here.items()}
    others = [
        f"{name} {version}, here {here[name]}"
        for name, version in given.items()
        if version != here[name] and re.fullmatch(r"[\w.+-]{1,40}", version)
    ]
    if others:
        return f"made with {'; '.join(others)}"
    return ""


def python_path() -> str:
    """PYTHONPATH of workers: our packages first, so that none of the same name hides them."""
    home = str(Path(__file__).resolve().parents[1])
    # In an interactive interpreter the working directory is the empty path.
    return os.pathsep.join(dict.fromkeys([home, *(path or os.getcwd() for path in sys.path)]))


class Stopwatch:
    """Wall and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    @property
    def wall_s(self) -> float:
        """Seconds passed."""
        return time.monotonic() - self._wall

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all threads."""
        return time.process_time() - self._cpu


def peak_rss_bytes() -> int:
    """Largest resident set this process ever had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak
    return peak * 1024


LOG_BYTES = 4096
"""Bytes of the end of a dead worker's log that are kept."""


def log_tail(path: str | Path) -> str | None:
    """The end of a log file; None where it is empty or lies on another machine."""
    try:
        with Path(path).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - LOG_BYTES))
            return stream.read().decode("utf-8", "replace").strip() or None
    except OSError:
        return None
