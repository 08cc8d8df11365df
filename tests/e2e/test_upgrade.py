"""A run folder that version 0.1 wrote opens, and its search goes on with its own sampler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OLD = Path(__file__).parent / "upgrade_assets" / "run_0_1"
"""``launch --model digits --trials 4 --pool inline --seed 0`` by dd50b60, without its artefacts."""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "runs" / "digits"))


def qsearch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run where the folder ``runs`` is."""
    command = [sys.executable, "-m", "qsearch", *arguments]
    where = folder.parents[1]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


def rows(folder: Path) -> list[dict[str, Any]]:
    shown = qsearch(folder, "trials", str(folder), "--format", "json")
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)
    return found


def test_a_study_of_version_0_1_goes_on_where_it_stopped(run_folder: Path) -> None:
    before = rows(run_folder)
    config = str(run_folder / "config.resolved.yaml")
    launched = qsearch(run_folder, "launch", "-c", config, "--trials", "6", "--json", "-q")
    assert launched.returncode == 0, launched.stderr
    after = rows(run_folder)
    assert [row["number"] for row in after] == list(range(6))
    assert after[:4] == before
    assert json.loads(launched.stdout)["best"]["trial"] == 3


def test_words_of_version_0_1_are_still_read(run_folder: Path) -> None:
    shown = qsearch(
        run_folder, "launch", "-c", str(run_folder / "config.resolved.yaml"), "--dry-run"
    )
    assert shown.returncode == 0, shown.stderr
    assert "auto" in shown.stdout


def test_a_module_of_version_0_1_is_proved(run_folder: Path) -> None:
    done = qsearch(run_folder, "verify", str(run_folder))
    assert done.returncode == 0, done.stderr
    assert "proved" in done.stdout
    assert "older format" in done.stdout
