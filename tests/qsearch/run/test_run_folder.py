"""Run folders: whose they are, what --fresh forgets, what cannot be written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from qsearch.errors import RunFolderError
from qsearch.process import file_lock
from qsearch.run.run_folder import RunFolder

OURS, FOREIGN = "a" * 64, "b" * 64


def made_for(sha256: str, path: Path) -> RunFolder:
    folder = RunFolder(path)
    with folder.in_use():
        folder.check_owner(sha256)
    folder.config.write_text(f"# model_sha256: {sha256}\nmodel: other.onnx  # flag\n")
    return folder


def test_a_folder_can_be_used_again_for_its_model(tmp_path: Path) -> None:
    folder = made_for(OURS, tmp_path / "a" / "b")
    folder.check_owner(OURS)
    assert folder.owner() == (OURS, "other.onnx")


def test_a_folder_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    folder = made_for(FOREIGN, tmp_path)
    with pytest.raises(RunFolderError, match=r"another model: other\.onnx"):
        folder.check_owner(OURS)
    assert folder.config.exists()


@pytest.fixture
def searched(tmp_path: Path) -> RunFolder:
    """A run folder with a study and a file of the user."""
    folder = made_for(FOREIGN, tmp_path)
    for path in (folder.module, folder.database, folder.report):
        path.write_bytes(b"old")
    folder.artifacts.mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    return folder


def test_a_renewed_folder_holds_nothing_of_the_earlier_study(searched: RunFolder) -> None:
    with searched.renewed():
        searched.check_owner(OURS)
        searched.module.write_bytes(b"new")
        searched.forget_earlier()
    assert sorted(p.name for p in searched.path.iterdir()) == [".lock", "best.qmod", "notes.txt"]
    assert searched.module.read_bytes() == b"new"


def test_without_a_trial_the_earlier_study_is_put_back(searched: RunFolder) -> None:
    before = sorted(p.name for p in searched.path.iterdir())
    with searched.renewed():
        searched.config.write_text("half")
        searched.data.mkdir()
    assert sorted(p.name for p in searched.path.iterdir()) == before
    assert searched.module.read_bytes() == b"old"
    assert searched.owner() == (FOREIGN, "other.onnx")


def test_a_run_that_was_killed_leaves_the_earlier_study_to_the_next_one(
    searched: RunFolder,
) -> None:
    killed = searched.renewed()
    killed.__enter__()
    searched.module.write_bytes(b"of the killed run")
    with searched.renewed():
        assert not searched.module.exists()
    assert searched.module.read_bytes() == b"old"


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


@pytest.mark.parametrize("moves", range(5))
def test_a_study_whose_move_is_cut_is_put_back(tmp_path: Path, moves: int) -> None:
    folder = RunFolder(tmp_path / "run")
    files = (folder.module, folder.qconfig, folder.report)
    with folder.in_use():
        for path in files:
            path.write_text(path.name)
    killed = os.fork()
    if killed == 0:
        count = 0

        def end(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            if event == "os.rename":
                if count == moves:
                    os._exit(0)
                count += 1

        sys.addaudithook(end)
        with folder.in_use(), folder.renewed():
            pass
        os._exit(1)
    os.waitpid(killed, 0)
    with folder.in_use(), folder.renewed():
        assert not any(path.exists() for path in files)
    assert [path.read_text() for path in files] == [path.name for path in files]
    assert not list(folder.path.glob(".[em]*"))
