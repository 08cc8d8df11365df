"""launch --fresh: what a wrong flag, a wrong file or Ctrl-C leaves of the earlier study."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.errors import SearchFailedError
from qsearch.run.run_folder import RunFolder
from tests.qsearch.quick import QUICK_SPACE


@pytest.fixture
def searched(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    qsearch.launch("digits", trials=1, pool="inline", out=folder.path, space=QUICK_SPACE)
    return folder


def test_a_flag_that_cannot_be_used_loses_nothing(searched: RunFolder, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        files = (searched.module, searched.report, searched.config, searched.qconfig)
        return {path.name: path.read_bytes() for path in files}

    before = content()
    bad = tmp_path / "bad.yaml"
    bad.write_text("fields: {calibrate_mode: [no_such]}")
    wrong = {
        "--space": str(bad),
        "--try": "calibrate_mode=no_such",
        "--metric": "no_such_module:metric",
        "--measure": "ssh://nobody@127.0.0.1:1",
        "--artifacts": "no-such-protocol://x",
    }
    common = ["launch", "--model", "digits", "-o", str(searched.path), "--pool", "inline", "-q"]
    for flag, value in wrong.items():
        assert run([*common, "--fresh", flag, value]) == 2, flag
        assert content() == before, flag
        assert len(qsearch.trials(searched.path)) == 1, flag
    assert not list(searched.path.glob(".earlier*"))


def test_a_search_that_ends_without_a_trial_puts_the_earlier_study_back(
    searched: RunFolder,
) -> None:
    over = threading.Event()
    over.set()
    before = searched.module.read_bytes()
    asked = {"trials": 1, "pool": "inline", "out": searched.path, "space": QUICK_SPACE}
    with pytest.raises(SearchFailedError):
        qsearch.launch("digits", fresh=True, seed=3, stop=over, **asked)
    assert searched.module.read_bytes() == before
    assert searched.setting("seed") == "0"
    qsearch.launch("digits", fresh=True, seed=3, **asked)
    assert searched.setting("seed") == "3"
    assert not list(searched.path.glob(".earlier*"))
