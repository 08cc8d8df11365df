"""Artefacts are named by what they hold and never half written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from qsearch.errors import StoreError
from qsearch.store.artifacts import ArtifactStore, write_atomically


def test_an_artifact_is_named_by_its_content_and_stored_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first, second = store.put(b"blob"), store.put(b"blob")
    assert first == second
    assert first.sha256 == hashlib.sha256(b"blob").hexdigest()
    assert store.get(first.sha256) == b"blob"
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


def test_arrays_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    a, b = np.arange(3, dtype=np.float32), np.array(["x"], dtype="U1")
    first = store.put_arrays({"a": a, "b": b})
    assert first == store.put_arrays({"b": b, "a": a})
    back = store.get_arrays(first.sha256)
    np.testing.assert_array_equal(back["a"], a)
    assert back["b"].tolist() == ["x"]


def test_a_damaged_or_missing_artifact_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = store.put(b"blob")
    store.path(artifact.sha256).write_bytes(b"glob")
    with pytest.raises(StoreError, match="damaged"):
        store.get(artifact.sha256)
    with pytest.raises(StoreError, match="missing"):
        store.get("0" * 64)


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "0" * 63])
def test_a_name_that_is_no_sha256_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="no artefact id"):
        ArtifactStore(tmp_path).get(name)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "best"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["best"]
