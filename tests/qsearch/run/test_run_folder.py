"""Run folders: whose they are, what --fresh forgets, what cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from qsearch.errors import RunFolderError
from qsearch.process import file_lock
from qsearch.run.run_folder import RunFolder

OURS, FOREIGN = "a" * 64, "b" * 64


def made_for(sha256: str, path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.in_use():
        folder.prepare(sha256, fresh=False)
    folder.config.write_text(f"# model_sha256: {sha256}\nmodel: other.onnx  # flag\n")
    return folder


def test_a_folder_can_be_used_again_for_its_model(tmp_path: Path) -> None:
    folder = made_for(OURS, tmp_path / "a" / "b")
    folder.prepare(OURS, fresh=False)
    assert folder.owner() == (OURS, "other.onnx")


def test_a_folder_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    folder = made_for(FOREIGN, tmp_path)
    with pytest.raises(RunFolderError, match=r"another model: other\.onnx"):
        folder.prepare(OURS, fresh=False)
    assert folder.config.exists()


def test_fresh_forgets_what_a_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    folder = made_for(FOREIGN, tmp_path)
    for path in (folder.module, folder.database, folder.report):
        path.write_bytes(b"old")
    folder.artifacts.mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    folder.prepare(OURS, fresh=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "notes.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(RunFolderError, match="cannot be written"), folder.in_use():
        pass


def test_one_run_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    one, other = RunFolder(tmp_path), RunFolder(tmp_path)
    with one.in_use(), pytest.raises(RunFolderError, match="another process"), other.in_use():
        pass
    with other.in_use():
        pass


def test_a_lock_that_its_holder_deleted_is_taken_anew(tmp_path: Path) -> None:
    path, busy = tmp_path / "lock", RuntimeError("busy")
    with file_lock(path, busy):
        path.unlink()
        with (
            file_lock(path, busy),
            pytest.raises(RuntimeError, match="busy"),
            file_lock(path, busy),
        ):
            pass
