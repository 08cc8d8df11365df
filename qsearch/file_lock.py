"""A lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path


@contextlib.contextmanager
def file_lock(path: Path, busy: Exception) -> Iterator[Callable[[], bool]]:
    """Hold an exclusive lock on ``path``, which is created; its holder may delete it.

    Yields:
        a function that tells whether the locked file still lies at ``path``.

    Raises:
        Exception: ``busy``, when another process holds it.
    """
    while True:
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise busy from error
            if not _is_at(path, handle.fileno()):
                continue  # its holder deleted it since it was opened
            yield partial(_is_at, path, handle.fileno())
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
