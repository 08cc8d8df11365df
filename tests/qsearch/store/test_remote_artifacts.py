"""Artefacts in a storage of fsspec's, shared by drivers with local folders of their own."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from qsearch.errors import StoreError
from qsearch.store.artifacts import RemoteArtifactStore, artifact_store, npz_bytes
from tests.needs import missing

pytest.importorskip("fsspec", reason=missing("the Python packages of the tests"))


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_an_artifact_of_one_driver_is_read_by_another(url: str, tmp_path: Path) -> None:
    here, there = (RemoteArtifactStore(tmp_path / name, url) for name in ("a", "b"))
    artifact = here.put("inputs", npz_bytes({"x": np.arange(5)}))
    assert there.has("inputs", artifact)
    np.testing.assert_array_equal(there.get_arrays("inputs", artifact)["x"], np.arange(5))
    assert there.path("inputs", artifact).is_file(), "kept for the next time"


def test_what_is_nowhere_or_damaged_is_told(url: str, tmp_path: Path) -> None:
    store = RemoteArtifactStore(tmp_path / "a", url)
    artifact = store.put("scales", b"weights")
    assert not store.has("scales", "0" * 64)
    with pytest.raises(StoreError, match="missing"):
        store.get("scales", "0" * 64)
    other = RemoteArtifactStore(tmp_path / "b", url)
    other._files.pipe_file(other._remote("scales", artifact), b"other")
    with pytest.raises(StoreError, match="damaged"):
        other.get("scales", artifact)


def test_a_url_that_fsspec_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be kept at nowhere://x"):
        artifact_store(tmp_path, "nowhere://x")
    assert type(artifact_store(tmp_path, None)).__name__ == "ArtifactStore"
