"""Files by sha256. What is written is complete or absent: temporary name, fsync, rename."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qsearch.errors import RunFolderError, StoreError


@dataclass(frozen=True, slots=True)
class ArtifactId:
    """Name (sha256, lower-case hex) and size of a stored file."""

    sha256: str
    bytes: int


class ArtifactStore:
    """A folder of immutable files, two levels deep, named by their content."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, data: bytes) -> ArtifactId:
        """Store ``data``; storing it twice is free."""
        artifact = ArtifactId(hashlib.sha256(data).hexdigest(), len(data))
        path = self.path(artifact.sha256)
        if not path.is_file():
            write_atomically(path, data)
        return artifact

    def get(self, sha256: str) -> bytes:
        """The bytes of an artefact.

        Raises:
            StoreError: it is not there, or the file was changed.
        """
        path = self.path(sha256)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(
                "an artefact of the study is missing",
                where=str(path),
                fix="restore the run folder, or start over with --fresh",
            ) from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(
                "an artefact of the study is damaged",
                where=str(path),
                fix="delete the file and run the same command again",
            )
        return data

    def has(self, sha256: str) -> bool:
        """Whether the file is there (its content is checked by ``get``)."""
        return self.path(sha256).is_file()

    def path(self, sha256: str) -> Path:
        """Where an artefact lies."""
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise StoreError(
                f"{sha256!r} is no artefact id", where="artifacts", fix="give a sha256"
            )
        return self.root / sha256[:2] / sha256

    def put_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> ArtifactId:
        """Store named arrays as one uncompressed .npz with sorted members."""
        buffer = io.BytesIO()
        np.savez(buffer, **{name: arrays[name] for name in sorted(arrays)})  # type: ignore[arg-type]
        return self.put(buffer.getvalue())

    def get_arrays(self, sha256: str) -> dict[str, NDArray[Any]]:
        """Arrays stored by ``put_arrays``."""
        with np.load(io.BytesIO(self.get(sha256)), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is complete or absent, whenever the process ends.

    Raises:
        RunFolderError: the disk is full, or the folder may not be written; names the file.
    """
    try:
        _write_atomically(path, data)
    except OSError as error:
        raise RunFolderError(
            f"{path.name} cannot be written: {error.strerror or error}",
            where=str(path),
            fix="free space, or make the folder writable, and run the same command again: "
            "finished trials are kept",
        ) from error


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# Shared with drivers on other machines ----------------------------------------------------------


class RemoteArtifactStore(ArtifactStore):
    """A local folder in front of a remote one: what is put goes to both, what is got is kept.

    Files are named by their content, so a copy is never stale and two drivers may put the same one.

    Args:
        root: the local folder.
        url: of the remote folder, such as ``s3://bucket/qsearch`` or ``file:///mnt/shared``.
    Raises:
        StoreError: fsspec, or its part for this kind of URL, is not installed.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.url = url
        try:
            self._files, self._base = import_module("fsspec").core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"artefacts cannot be kept at {url}: {error}",
                where="artifacts",
                fix="pip install 'qsearch[remote]' and what fsspec needs for this kind of URL",
            ) from error

    def put(self, data: bytes) -> ArtifactId:
        """Store ``data`` here and there; storing it twice is free.

        Raises:
            StoreError: the remote storage refuses.
        """
        artifact = super().put(data)
        remote = self._remote(artifact.sha256)
        try:
            if not self._files.exists(remote):
                self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(remote, data)
        except Exception as error:  # whatever the storage's own client raises
            raise self._unreachable(error) from error
        return artifact

    def get(self, sha256: str) -> bytes:
        """The bytes of an artefact, fetched if it is not here; see ``ArtifactStore.get``."""
        if not super().has(sha256) and self.has(sha256):
            try:
                data: bytes = self._files.cat_file(self._remote(sha256))
            except Exception as error:  # whatever the storage's own client raises
                raise self._unreachable(error) from error
            write_atomically(self.path(sha256), data)
        return super().get(sha256)

    def has(self, sha256: str) -> bool:
        """Whether it is here or there."""
        if super().has(sha256):
            return True
        try:
            return bool(self._files.exists(self._remote(sha256)))
        except Exception as error:  # whatever the storage's own client raises
            raise self._unreachable(error) from error

    def _remote(self, sha256: str) -> str:
        return f"{self._base}/{self.path(sha256).relative_to(self.root).as_posix()}"

    def _unreachable(self, error: Any) -> StoreError:
        return StoreError(
            f"the artefacts at {self.url} cannot be reached: {error}",
            where="artifacts",
            fix="check the URL and its credentials; a search without --artifacts keeps them local",
        )


def artifact_store(root: Path, url: str | None) -> ArtifactStore:
    """Artefacts in a local folder, and at ``url`` where one is given."""
    return ArtifactStore(root) if url is None else RemoteArtifactStore(root, url)
