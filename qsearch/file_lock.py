"""A lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, busy: Exception) -> Iterator[None]:
    """Hold an exclusive lock on ``path``, which is created.

    Raises:
        Exception: ``busy``, when another process holds it.
    """
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        yield
