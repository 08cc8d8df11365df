"""Files by kind and sha256, complete or absent."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import raised_as
from compiler.runtime.files import replaced
from qsearch.errors import RunFolderError, StoreError, system_errors
from qsearch.masking import masked

_KIND: Final = re.compile(r"[a-z_]{1,32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SUFFIXES: Final = {"float_module": ".ir", "interface": ".json"}
"""Kind -> ending of the file name; the files of all other kinds hold arrays (.npz)."""
_LETTERS: Final = 12


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as an .npz, the same bytes for the same arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: arrays[name] for name in sorted(arrays)})  # type: ignore[arg-type]
    return buffer.getvalue()


class ArtifactStore:
    """A folder of immutable files, named by what they are and by their content."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, kind: str, data: bytes) -> str:
        """Store ``data`` under its sha256, which is returned; storing it twice is free."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(kind, sha256)
        if not path.is_file():
            write_atomically(path, data)
        return sha256

    def get(self, kind: str, sha256: str) -> bytes:
        """The bytes of an artefact.

        Raises:
            StoreError: it is not there, or the file was changed.
        """
        path = self.path(kind, sha256)
        what = "an artefact is missing"
        fix = "restore the run folder, or start over with --fresh"
        with system_errors(StoreError, what, where=str(path), fix=fix):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(
                "an artefact of the study is damaged",
                where=str(path),
                fix="delete the file and run the same command again",
            )
        return data

    def has(self, kind: str, sha256: str) -> bool:
        """Return whether the file is there (its content is checked by ``get``)."""
        return self.path(kind, sha256).is_file()

    def path(self, kind: str, sha256: str) -> Path:
        """Return the path of an artefact: ``calibration-924043b1ae02.npz``.

        Raises:
            StoreError: this is no kind, or no sha256.
        """
        if _KIND.fullmatch(kind) is None or _SHA256.fullmatch(sha256) is None:
            raise StoreError(
                f"{kind} {sha256!r} is no artefact", where="artifacts", fix="give a sha256"
            )
        return self.root / f"{kind}-{sha256[:_LETTERS]}{_SUFFIXES.get(kind, '.npz')}"

    def get_arrays(self, kind: str, sha256: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``npz_bytes``."""
        with np.load(io.BytesIO(self.get(kind, sha256)), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


_KEPT: Final = (
    "free space, or make the folder writable, and run the same command again: finished trials are "
    "kept"
)


def write_atomically(path: Path, data: bytes, mode: int | None = None, fix: str = _KEPT) -> None:
    """Write a file as ``files.replaced`` does.

    Args:
        mode: permissions; None keeps those of the file or of the umask.
        fix: the cure if it cannot be written.
    Raises:
        RunFolderError: the disk is full, or the folder may not be written; names the file.
    """
    what = f"{path.name} cannot be written"
    with system_errors(RunFolderError, what, where=str(path), fix=fix):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, mode) as stream:
            stream.write(data)


# Shared with drivers on other machines ----------------------------------------------------------


class RemoteArtifactStore(ArtifactStore):
    """A local folder in front of a remote one: what is put goes to both, what is got is kept.

    Names tell the content, so a copy is never stale and two drivers may put the same one.

    Args:
        root: the local folder.
        url: of the remote folder, such as ``s3://bucket/qsearch`` or ``file:///mnt/shared``.
    Raises:
        StoreError: fsspec, or its part for this kind of URL, is not installed.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.url = url
        with raised_as(
            StoreError,
            f"artefacts cannot be kept at {masked(url)}",
            ImportError,
            ValueError,
            where="artifacts",
            fix="pip install 'qsearch[remote]' and what fsspec needs for this kind of URL",
        ):
            self._files, self._base = import_module("fsspec").core.url_to_fs(url)

    def put(self, kind: str, data: bytes) -> str:
        """Store ``data`` here and there; storing it twice is free.

        Raises:
            StoreError: the remote storage refuses.
        """
        sha256 = super().put(kind, data)
        with self._reached():
            place = self._remote(kind, sha256)
            if not self._files.exists(place):
                self._files.makedirs(self._base, exist_ok=True)
                self._files.pipe_file(place, data)
        return sha256

    def get(self, kind: str, sha256: str) -> bytes:
        """The bytes of an artefact, fetched if it is not here; see ``ArtifactStore.get``."""
        if not super().has(kind, sha256):
            with self._reached():
                place = self._remote(kind, sha256)
                if self._files.exists(place):
                    data = self._files.cat_file(place)
                else:
                    data = None
            if data is not None:
                write_atomically(self.path(kind, sha256), data)
        return super().get(kind, sha256)

    def has(self, kind: str, sha256: str) -> bool:
        """Return whether it is here or there."""
        with self._reached():
            return super().has(kind, sha256) or self._files.exists(self._remote(kind, sha256))

    def _remote(self, kind: str, sha256: str) -> str:
        """Return the remote path of an artefact."""
        return f"{self._base}/{self.path(kind, sha256).name}"

    def _reached(self) -> AbstractContextManager[None]:
        return raised_as(
            StoreError,
            f"the artefacts at {masked(self.url)} cannot be reached",
            Exception,  # whatever the storage's own client raises
            where="artifacts",
            fix="check the URL and its credentials; a search without --artifacts keeps them local",
        )


def artifact_store(root: Path, url: str | None) -> ArtifactStore:
    """Artefacts in a local folder, and at ``url`` where one is given."""
    if url is None:
        return ArtifactStore(root)
    return RemoteArtifactStore(root, url)
