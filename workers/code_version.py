"""Which code this process runs, and how workers find the same: other code gives other scores."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
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


def python_path() -> str:
    """PYTHONPATH of workers: our packages first, so that none of the same name hides them."""
    home = str(Path(__file__).resolve().parents[1])
    # In an interactive interpreter the working directory is the empty path.
    return os.pathsep.join(dict.fromkeys([home, *(path or os.getcwd() for path in sys.path)]))
