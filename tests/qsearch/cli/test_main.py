"""The command line: quick to start, both spellings of flags, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qsearch.cli.main import COMMANDS, parse, run
from tests.each import each

HEAVY = {
    "ray",
    "onnx",
    "onnxruntime",
    "optuna",
    "sqlalchemy",
    "numpy",
    "pandas",
    "fastapi",
    "rich",
    "compiler",
}


REGISTRY = {"compiler", "numpy"}
"""What the registry of metrics and costs imports; ``launch --help`` names them all."""


@pytest.mark.parametrize(
    ("words", "needed"),
    [(["--help"], set()), (["launch", "--help"], REGISTRY), (["--version"], set())],
)
def test_help_loads_nothing_heavy(words: list[str], needed: set[str]) -> None:
    code = (
        "import json, sys\n"
        "from qsearch.cli.main import run\n"
        f"code = run({words!r})\n"
        "print()\n"
        "print(json.dumps([code, sorted({n.partition('.')[0] for n in sys.modules})]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    exit_code, loaded = json.loads(found.stdout.splitlines()[-1])
    assert exit_code == 0
    assert HEAVY & set(loaded) <= needed


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, qsearch; print(*{n.partition('.')[0] for n in sys.modules})"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert HEAVY & set(found.stdout.split()) == set()


def test_underscores_in_flags_are_hyphens_and_values_are_left_alone() -> None:
    words = ["export", "--reduce_range", "--name=a_b", "--hw", "opu_q", "--", "--x_y"]
    given = parse(words).params
    assert given["reduce_range"]
    assert (given["name"], given["hw"], given["path"]) == ("a_b", "opu_q", "--x_y")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"qsearch {command}" in capsys.readouterr().out


def test_a_foreign_package_of_our_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(1, {str(Path(__file__).parents[3])!r})\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from qsearch.cli.main import run; sys.exit(run(['status', 'x']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert found.returncode == 2, found.stderr
    assert "'workers'" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["launch", "--model", "digits", "-o", str(folder), "--dry-run", "--json"]
    assert run([*words, "--trials", "20000"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["trials"] == 2_376
    assert plan["metric"] == "top1"
    assert "400 samples, labels" in plan["evaluation"]
    assert not folder.exists()


def test_the_screens_of_a_search_fit_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qsearch.cli.output.terminal_width", lambda: 80)
    words = ["launch", "--model", "digits", "--trials", "1", "--pool", "inline"]
    for more in each([["--dry-run"], []]):
        assert run([*words, *more]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line for line in shown if len(line) > 80] == []
        assert len(shown) > 15


def test_ctrl_c_during_the_first_import_is_no_traceback() -> None:
    code = (
        "import sys, qsearch\n"
        "class PressesCtrlC:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'qsearch.__main__':\n"
        "            sys.meta_path.remove(self)\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, PressesCtrlC())\n"
        "from qsearch.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
