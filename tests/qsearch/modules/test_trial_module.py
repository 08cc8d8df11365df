"""The module of any trial: the bits that were scored."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from pathlib import Path

import pytest

import qsearch
from compiler.runtime.archive import read_archive
from qsearch.cli.main import run
from qsearch.errors import SettingsError, StoreError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs") / "d"
    words = ["launch", "--model", "digits", "--trials", "4", "--pool", "inline", "-o", str(made)]
    assert run(words) == 0
    return made


def test_every_trial_gives_the_outputs_that_were_scored(folder: Path, tmp_path: Path) -> None:
    data = str(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    for row in qsearch.trials(folder):
        out = tmp_path / f"{row['number']}.qmod"
        qsearch.write_trial(folder, row["number"], out)
        found = qsearch.run_module(out, data, executor="reference")
        assert found["top1"] == row["top1"]
        assert found["outputs_sha256"] == row["outputs_sha256"]


def test_the_winner_is_the_file_that_the_search_wrote(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.qmod"
    assert run(["best", str(folder), "-o", str(out)]) == 0
    ours, theirs = read_archive(out), read_archive(folder / "best.qmod")
    assert ours.keys() == theirs.keys()
    # Which ONNX node a call came from is not known of every call any more.
    for name in ours.keys() - {"spans.json", "proof.json", "manifest.json"}:
        assert ours[name] == theirs[name], name


def test_a_trial_without_score_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "d"
    shutil.copytree(folder, copy)
    with sqlite3.connect(copy / "study.db") as database:
        database.execute("UPDATE qs_trial SET state = 'pruned' WHERE number = 2")
    with pytest.raises(SettingsError, match=r"trial 2 .* stopped early"):
        qsearch.write_trial(copy, 2, tmp_path / "t.qmod")
    with pytest.raises(SettingsError, match="no trial 99"):
        qsearch.write_trial(copy, 99, tmp_path / "t.qmod")
    shutil.rmtree(copy / "artifacts")
    with pytest.raises(StoreError):
        qsearch.write_trial(copy, 0, tmp_path / "t.qmod")
    assert not (tmp_path / "t.qmod").exists()


def test_a_run_folder_with_artefacts_as_version_0_1_named_them_opens(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "d"
    shutil.copytree(folder, copy)
    for path in list((copy / "artifacts").iterdir()):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        (copy / "artifacts" / sha256[:2]).mkdir(exist_ok=True)
        path.rename(copy / "artifacts" / sha256[:2] / sha256)
    before = sorted((copy / "artifacts").rglob("*"))
    words = ["launch", "--model", "digits", "--trials", "5", "--pool", "inline", "-o", str(copy)]
    assert run(words) == 0
    kept = set(before) & set((copy / "artifacts").rglob("*"))
    assert kept == set(before), "found there, not made again"
    for out in (copy, folder):
        qsearch.write_trial(out, 1, tmp_path / f"{out.parent.name}.qmod")
