"""Artefacts are named by what they hold and never half written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from qsearch.errors import StoreError
from qsearch.store.artifacts import ArtifactStore, npz_bytes, write_atomically


def test_an_artifact_is_named_by_its_content_and_stored_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first, second = store.put("scales", b"blob"), store.put("scales", b"blob")
    assert first == second
    assert first == hashlib.sha256(b"blob").hexdigest()
    assert store.get("scales", first) == b"blob"
    assert [p.name for p in tmp_path.iterdir()] == [f"scales-{first[:12]}.npz"]


def test_arrays_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    a, b = np.arange(3, dtype=np.float32), np.array(["x"], dtype="U1")
    first = store.put("inputs", npz_bytes({"a": a, "b": b}))
    assert first == store.put("inputs", npz_bytes({"b": b, "a": a}))
    back = store.get_arrays("inputs", first)
    np.testing.assert_array_equal(back["a"], a)
    assert back["b"].tolist() == ["x"]


def test_a_damaged_or_missing_artifact_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = store.put("inputs", b"blob")
    store.path("inputs", artifact).write_bytes(b"glob")
    with pytest.raises(StoreError, match="damaged"):
        store.get("inputs", artifact)
    with pytest.raises(StoreError, match="missing"):
        store.get("inputs", "0" * 64)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("inputs", "../../etc/passwd"),
        ("inputs", "A" * 64),
        ("inputs", "0" * 63),
        ("../inputs", "0" * 64),
        ("", "0" * 64),
    ],
)
def test_what_is_no_kind_or_no_sha256_is_never_a_path(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(StoreError, match="is no artefact"):
        ArtifactStore(tmp_path).get(kind, name)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "best"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["best"]
