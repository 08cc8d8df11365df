"""Data that change after their hash was taken are refused, whoever opened them and whenever."""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from workers.datasets.contents import Contents
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import OpenDatasets, open_dataset
from workers.errors import DataChangedError
from workers.messages import DatasetRef

INPUTS = [InputSpec("x", (1, 3), "float32")]
IMAGES = [InputSpec("x", (1, 1, 4, 4), "float32")]


def rows(seed: int, count: int = 40) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


def pinned(path: Path) -> DatasetRef:
    return DatasetRef("npz", {"path": str(path)}, Contents(path).sha256)


def in_place(path: Path, seed: int) -> None:
    with path.open("r+b") as file:
        file.seek(-12, os.SEEK_END)
        file.write(rows(seed, 1).tobytes())


def renamed_over(path: Path, seed: int) -> None:
    other = path.with_name("other" + path.suffix)
    np.save(other, rows(seed))
    facts = path.stat()
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


def cut_off(path: Path, seed: int) -> None:
    os.truncate(path, 140)


def deleted(path: Path, seed: int) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [in_place, renamed_over, cut_off, deleted])
def test_a_file_changed_after_it_was_opened_gives_no_more_samples(
    tmp_path: Path, change: Callable[[Path, int], None]
) -> None:
    path = tmp_path / "d.npy"
    np.save(path, rows(0))
    dataset = open_dataset(pinned(path), INPUTS)
    np.testing.assert_array_equal(dataset.batch(range(2)).inputs["x"], rows(0)[:2])
    change(path, 1)
    with pytest.raises(DataChangedError, match=r"d\.npy was") as caught:
        dataset.batch(range(30, 40))
    assert str(path) in str(caught.value)
    assert "run the same command" in str(caught.value)
    assert type(pickle.loads(pickle.dumps(caught.value))) is DataChangedError


@pytest.mark.parametrize("change", [in_place, renamed_over, cut_off, deleted])
def test_a_worker_that_opens_a_changed_file_says_so_at_once(
    tmp_path: Path, change: Callable[[Path, int], None]
) -> None:
    path = tmp_path / "d.npy"
    np.save(path, rows(0))
    ref = pinned(path)
    change(path, 1)
    with pytest.raises(DataChangedError, match=r"d\.npy was"):
        OpenDatasets().open(ref, INPUTS)


def test_a_file_that_is_touched_or_written_again_as_it_was_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "d.npy"
    np.save(path, rows(0))
    dataset = open_dataset(pinned(path), INPUTS)
    os.utime(path, ns=(1, 1))
    assert len(dataset.batch(range(3)).inputs["x"]) == 3
    path.unlink()
    np.save(path, rows(0))
    assert len(dataset.batch(range(3)).inputs["x"]) == 3


def test_a_changed_image_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4), 10).save(tmp_path / name / "a.png")
    options = {"path": str(tmp_path), "preprocess": {"channel_order": "GRAY"}}
    ref = DatasetRef("image_folder", options, Contents(tmp_path).sha256)
    dataset = open_dataset(ref, IMAGES)
    dataset.batch(range(2))
    Image.new("L", (4, 4), 99).save(tmp_path / "1" / "a.png")
    dataset.batch(range(1))
    with pytest.raises(DataChangedError, match=r"a\.png was changed"):
        dataset.batch(range(1, 2))
    with pytest.raises(DataChangedError):
        open_dataset(ref, IMAGES)


@pytest.mark.parametrize("change", [in_place, renamed_over, cut_off])
def test_a_large_file_is_read_again_once_it_was_changed(
    tmp_path: Path, change: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All files were written long ago.
    later = SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10)
    monkeypatch.setattr("workers.datasets.contents.time", later)
    path = tmp_path / "d.npy"
    np.save(path, rows(0, 1 << 17))
    first = Contents(path).sha256
    assert Contents(path).sha256 == first == hashlib.sha256(path.read_bytes()).hexdigest()
    before = path.stat().st_ctime_ns
    while (tmp_path / "clock").touch() or (tmp_path / "clock").stat().st_ctime_ns == before:
        pass  # until a change gets another time
    change(path, 1)
    assert Contents(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != first


@pytest.mark.parametrize("hashed", ["d.npy", "below/../d.npy", "link.npy"])
def test_a_file_is_the_same_by_whatever_path_it_was_hashed(
    tmp_path: Path, hashed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--calib d.npy`` is hashed by the path as it was written and read by its whole path."""
    (tmp_path / "below").mkdir()
    np.save(tmp_path / "d.npy", rows(0))
    (tmp_path / "link.npy").symlink_to("d.npy")
    monkeypatch.chdir(tmp_path)
    dataset = open_dataset(pinned(tmp_path / "d.npy"), INPUTS, Contents(Path(hashed)))
    assert dataset.batch(range(2)).inputs["x"].shape == (2, 3)
    renamed_over(tmp_path / "d.npy", 1)
    with pytest.raises(DataChangedError):
        dataset.batch(range(2))


def test_class_folders_may_be_links(tmp_path: Path) -> None:
    real, linked, copied = (tmp_path / name for name in ("real", "linked", "copied"))
    for folder in (real / "0", linked, copied / "0"):
        folder.mkdir(parents=True)
    for folder in (real, copied):
        Image.new("L", (4, 4)).save(folder / "0" / "a.png")
    (linked / "0").symlink_to(real / "0")
    contents = Contents(linked)
    assert contents.sha256 == Contents(copied).sha256
    ref = DatasetRef("image_folder", {"path": str(linked), "preprocess": {}}, contents.sha256)
    assert open_dataset(ref, IMAGES).batch(range(1)).labels.tolist() == [0]
