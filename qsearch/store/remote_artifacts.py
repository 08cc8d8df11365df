"""Artefacts that drivers on several machines share, in any storage that fsspec knows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from qsearch.errors import StoreError
from qsearch.store.artifacts import ArtifactId, ArtifactStore, write_atomically


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
