"""Write a file so that readers find the old content or the new one, whenever the process ends."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_NO_NEW_FILE: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
"""Errors of a folder that takes no new file; a file in it may be writable."""


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a stream, and replace a file by its content when the block ends without an error.

    The stream writes to a temporary file beside the target, which is flushed to the disk and
    renamed. A pipe, a device, the standard output and a file in a folder that takes no new file are
    written in place.

    Args:
        path: the file; a symbolic link stays, and its target is replaced.
        mode: permissions; None keeps those of the file, and a new file has those of the umask.
    Raises:
        OSError: the file cannot be written; it is what it was.
    """
    target = Path(os.path.realpath(path))
    known = _status(path)
    temporary = target.with_name(f".part-{secrets.token_hex(8)}")
    descriptor = None
    if known is None or _may_be_renamed_over(known, target):
        descriptor = _created(temporary, target, mode, known)
    if descriptor is None:
        with open(path, "wb") as stream:
            yield stream
        return
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path)
    return None


def _may_be_renamed_over(known: os.stat_result, target: Path) -> bool:
    """Return whether it is a regular, writable file, and no output stream of this process."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(known, os.fstat(descriptor)):
                return False
    return stat.S_ISREG(known.st_mode) and os.access(target, os.W_OK)


def _created(
    temporary: Path, target: Path, mode: int | None, known: os.stat_result | None
) -> int | None:
    """Create the temporary file; None if the folder takes no new file and the target exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
    except OSError as error:
        if known is not None and error.errno in _NO_NEW_FILE:
            return None
        error.filename = str(target)
        raise
    if mode is not None or known is None:
        kept = mode
    else:
        kept = stat.S_IMODE(known.st_mode)
    if kept is not None:
        os.fchmod(descriptor, kept)
    return descriptor
