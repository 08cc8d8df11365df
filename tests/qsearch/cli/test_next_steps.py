"""What launch and compile say can be done next: the lines are run as they were printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from qsearch.cli.launch import after_launch
from qsearch.cli.main import run

Output = pytest.CaptureFixture[str]

TINY = ["--model", "digits", "--pool", "inline", "--trials", "1"]


def commands(text: str) -> list[list[str]]:
    """The qsearch command lines after ``next``, without the word qsearch."""
    told = " ".join(text[text.index("next") :].split()).removeprefix("next").lstrip(": ")
    told = told.replace("qsearch ", "\n")
    return [shlex.split(line.rstrip("; ")) for line in told.splitlines() if line.strip()]


def test_launch_ends_with_commands_that_work(tmp_path: Path, capfd: Output) -> None:
    folder = tmp_path / "my run"
    assert run(["launch", *TINY, "-o", str(folder)]) == 0
    verify, export, dashboard = commands(capfd.readouterr().out)
    assert verify == ["verify", str(folder)]
    assert run(verify) == 0
    assert run(export) == 0
    assert list(folder.rglob("main.c"))
    assert dashboard == ["dashboard", str(folder)]


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_a_program_is_told_no_next_command(option: str, tmp_path: Path, capfd: Output) -> None:
    assert run(["launch", *TINY, "-o", str(tmp_path / "run"), option]) == 0
    told = capfd.readouterr()
    assert "qsearch verify" not in told.out + told.err
    if option == "--json":
        assert json.loads(told.out.splitlines()[-1])["module"]


def test_compile_says_it_beside_the_path(tmp_path: Path, capfd: Output) -> None:
    path = tmp_path / "m.qmod"
    words = ["compile", "--model", "digits", "-o", str(path)]
    assert run(words) == 0
    told = capfd.readouterr()
    assert told.out == f"{path}\n"
    verify, export = commands(told.err)
    assert verify == ["verify", str(path)]
    assert export == ["export", str(path), "--format", "c"]
    assert run([*words, "-q"]) == 0
    assert capfd.readouterr().err == ""


def test_what_comes_next_follows_how_the_search_ended() -> None:
    folder = Path("runs/m")
    best = {"qconfig": {"partition_conversions": "disabled"}}
    summary = {"module": "runs/m/best.qmod", "best": best}
    assert "--format float" in after_launch(folder, summary, 0)
    assert "dashboard --storage URL" in after_launch(folder, summary, 0, own_storage=False)
    assert "qsearch insight runs/m/best.qmod" in after_launch(folder, summary, 1)
    assert "the same command goes on" in after_launch(folder, summary, 130)
    empty = {"module": None, "best": None}
    assert after_launch(folder, empty, 1) == "next      qsearch dashboard runs/m"
