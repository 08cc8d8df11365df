"""Uploads: each file is stored once under its sha256 and counted for every user who sent it."""

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
BLOCK_BYTES: Final = 4096
"""A file or folder counts as whole blocks, as on a disk: an empty one is not free."""
_REFERENCE: Final = re.compile(rf"[0-9a-f]{{64}}\.({KINDS})")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class QuotaError(SearchError):
    """A user would use more than the quota allows."""

    http_status = 429


class SizeQuotaError(QuotaError):
    """An upload beyond the quota of bytes."""

    http_status = 413


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

    def used(self, user: User) -> int:
        """Bytes of all that a user keeps here."""
        return sum(one.bytes for one in self.repository.uploads_of(self.server, user.name))

    def room(self, user: User, size: int) -> int | None:
        """Bytes that a user may still send; None for any.

        Args:
            size: of what is to come, as far as it is known.
        Raises:
            SizeQuotaError: that is more than the quota has left, or nothing is left.
        """
        most = user.quota.max_bytes
        if most is None:
            return None
        left = most - self.used(user)
        if left <= 0 or size > left:
            raise _beyond(most)
        return left

    async def receive(
        self, chunks: AsyncIterator[bytes], user: User, room: int | None
    ) -> tuple[Path, str]:
        """Write a body to a file as it arrives, within the quota; the file and its sha256.

        Args:
            room: bytes that the user may still send; None for any.
        Raises:
            SizeQuotaError: more than the user's quota allows; nothing is kept.
            DiskFullError: no room.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        arrived = 0
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as stream:
                async for chunk in chunks:
                    arrived += len(chunk)
                    if room is not None and arrived > room:
                        raise _beyond(int(user.quota.max_bytes or 0))
                    digest.update(chunk)
                    stream.write(chunk)
        except BaseException as error:
            Path(name).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise DiskFullError(
                    "the disk of the server is full",
                    where=self.folder.name,
                    fix="its operator has to free space; then send the same again",
                ) from error
            raise
        return Path(name), digest.hexdigest()

    def unpacked(self) -> tempfile.TemporaryDirectory[str]:
        """An empty folder for what a zip holds, for a while; ``keep`` gives it its name."""
        return tempfile.TemporaryDirectory(
            dir=self.folder, prefix=".part-", ignore_cleanup_errors=True
        )

    def keep(self, user: User, found: Path, sha256: str, kind: str, size: int) -> Upload:
        """Store a file or an unpacked folder that passed all checks; once more counts nothing.

        Args:
            size: bytes that count: of an archive what it unpacks to, all in whole blocks.
        Raises:
            SizeQuotaError: it is more than the quota allows; nothing is kept.
        """
        place = place_of(self.folder, sha256, kind)
        upload = Upload(sha256, kind, size, time.time())
        with self._lock:
            known = self.owned(user, sha256, kind)
            if known is not None:
                return known
            self.room(user, size)
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


def blocks(size: int) -> int:
    """Bytes that a file or a folder of so many bytes counts."""
    return max(-(-size // BLOCK_BYTES), 1) * BLOCK_BYTES


def _beyond(most: int) -> SizeQuotaError:
    return SizeQuotaError(
        f"your uploads would be more than the {most} bytes of your quota",
        where="quota of bytes",
        fix="forget files that no study needs any more, or ask the server's operator for more",
    )
