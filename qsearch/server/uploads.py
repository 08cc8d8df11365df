"""Uploads: each file is stored once under its sha256 and listed for every user who sent it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qsearch.errors import SearchError, SettingsError
from qsearch.server.tokens import User
from qsearch.store.records import Upload
from qsearch.store.repository import Repository

MODELS: Final = ("onnx",)
DATA: Final = ("npz", "npy", "zip")
"""A zip holds a folder of images, and is kept unpacked."""
KINDS: Final = "|".join((*MODELS, *DATA))
"""Kinds of uploads, as part of a pattern."""

HIDDEN: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Control characters and those that turn the direction of text, as part of a pattern."""
LEAST_FREE_BYTES: Final = 2 << 30
"""Bytes that stay free on the disk of the uploads: a server whose disk is full loses studies."""
_REFERENCE: Final = re.compile(rf"[0-9a-f]{{64}}\.({KINDS})")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskFullError(SearchError):
    """The disk of the server has no room."""

    http_status = 507


def references(word: object) -> bool:
    """Return whether a setting names an upload: ``SHA256.KIND``."""
    return isinstance(word, str) and _REFERENCE.fullmatch(word) is not None


@dataclass(slots=True)
class Uploads:
    """The uploaded files in a folder, and which user sent each of them; safe in several threads.

    Args:
        folder: where files lie, each under its sha256.
        repository: whose tables of uploads are used.
        server: name of the server in those tables.
    """

    folder: Path
    repository: Repository
    server: str
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def owned(self, user: User, sha256: str, kind: str) -> Upload | None:
        """A file that this user sent before and that is still here."""
        for upload in self.repository.uploads_of(self.server, user.name):
            if (upload.sha256, upload.kind) == (sha256, kind):
                if place_of(self.folder, sha256, kind).exists():
                    return upload
                return None
        return None

    def require(self, user: User, reference: str) -> None:
        """Refuse a file that this user has not sent: to know a hash is not enough.

        Raises:
            SettingsError: the user has not sent it.
        """
        sha256, _, kind = reference.partition(".")
        if self.owned(user, sha256, kind) is None:
            raise SettingsError(
                "you have not uploaded this file", where=reference[:80], fix="upload it first"
            )

    def require_room(self, size: int) -> None:
        """Refuse a file that would leave less than ``LEAST_FREE_BYTES`` on the disk.

        Raises:
            DiskFullError: it would.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.folder).free - size < LEAST_FREE_BYTES:
            raise _full(self.folder)

    async def receive(self, chunks: AsyncIterator[bytes]) -> tuple[Path, str]:
        """Write a body to a file as it arrives; the file and its sha256.

        Raises:
            DiskFullError: no room; nothing is kept.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as stream:
                async for chunk in chunks:
                    digest.update(chunk)
                    stream.write(chunk)
        except BaseException as error:
            Path(name).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise _full(self.folder) from error
            raise
        return Path(name), digest.hexdigest()

    def unpacked(self) -> tempfile.TemporaryDirectory[str]:
        """An empty folder for what a zip holds, for a while; ``keep`` gives it its name."""
        return tempfile.TemporaryDirectory(
            dir=self.folder, prefix=".part-", ignore_cleanup_errors=True
        )

    def keep(self, user: User, found: Path, sha256: str, kind: str, size: int) -> Upload:
        """Store a file or an unpacked folder that passed all checks; once more changes nothing.

        Args:
            size: in bytes, of an archive unpacked.
        """
        place = place_of(self.folder, sha256, kind)
        upload = Upload(sha256, kind, size, time.time())
        with self._lock:
            known = self.owned(user, sha256, kind)
            if known is not None:
                return known
            if not place.exists():
                found.replace(place)
            self.repository.add_upload(self.server, user.name, upload)
        return upload

    def forget(self, user: User, sha256: str) -> None:
        """Remove a file from a user's list; it is deleted when no user lists it."""
        with self._lock:
            if self.repository.forget_upload(self.server, user.name, sha256):
                return
            for kind in (*MODELS, *DATA):
                place = place_of(self.folder, sha256, kind)
                if place.is_dir():
                    shutil.rmtree(place)
                else:
                    place.unlink(missing_ok=True)

    def clear_parts(self) -> None:
        """Delete the incomplete files of a server that was killed."""
        for part in self.folder.glob(".part-*"):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def place_of(folder: Path, sha256: str, kind: str) -> Path:
    """Return the path of an upload in the folder of uploads: a file, or a folder of images."""
    return folder / (f"{sha256}.images" if kind == "zip" else f"{sha256}.{kind}")


def _full(folder: Path) -> DiskFullError:
    return DiskFullError(
        "the disk of the server is full",
        where=folder.name,
        fix="its operator has to free space; then send the same again",
    )
