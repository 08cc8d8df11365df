"""What commands say can be done next: every line is run by a shell as it was printed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import qsearch
from qsearch.cli.launch import after_launch
from qsearch.cli.main import parse, run
from qsearch.settings.launch_settings import Settings
from tests.needs import missing
from tests.qsearch.quick import QUICK_SPACE

pytestmark = pytest.mark.usefixtures("quick_space")

Output = pytest.CaptureFixture[str]

TINY = ["--model", "digits", "--pool", "inline", "--trials", "1"]


def next_lines(text: str) -> list[str]:
    """The command lines after ``next``; those below it are indented."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("next"):
            found.append(line.removeprefix("next").lstrip(": "))
        elif found and line.startswith("          "):
            found.append(line.strip())
    return found


SPLIT = "qsearch() { printf '%s\\0' \"$@\"; }\n"


def paste(line: str, first: str = SPLIT) -> None:
    """Have a shell split a line, and run the command here; a page that is served is only parsed."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "-c", first + line]
    done = subprocess.run(shell, env={**os.environ, "PATH": here}, capture_output=True, text=True)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    if first and line.startswith("qsearch "):
        words = done.stdout.split("\0")[:-1]
        assert parse(words) if words[0] == "dashboard" else run(words) == 0, line


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "my run"
    qsearch.launch("digits", out=folder, trials=1, pool="inline", space=QUICK_SPACE)
    return folder


@pytest.mark.slow
def test_launch_ends_with_commands_that_work(tmp_path: Path, capfd: Output) -> None:
    folder = tmp_path / "my run"
    assert run(["launch", *TINY, "-o", str(folder)]) == 0
    lines = next_lines(capfd.readouterr().out)
    place = shlex.quote(str(folder))
    assert lines == [
        f"qsearch verify {place}",
        f"qsearch export {place} --format c",
        f"qsearch dashboard {place}",
    ]
    paste(lines[0], first="")  # by a shell as a whole
    for line in lines[1:]:
        paste(line)
    assert list(folder.rglob("main.c"))


def test_the_next_export_is_of_the_form_that_the_search_was_for(
    tmp_path: Path, capfd: Output
) -> None:
    place = shlex.quote(str(tmp_path / "r"))
    assert run(["launch", *TINY, "--for", "qdq", "-o", str(tmp_path / "r")]) == 0
    assert f"qsearch export {place} --format qdq" in next_lines(capfd.readouterr().out)


@pytest.mark.slow
def test_a_missed_target_and_an_interrupt_name_commands_that_work(searched: Path) -> None:
    settings = Settings(model="digits")
    summary = {"module": str(searched / "best.qmod"), "best": None}
    for code in (1, 130):
        told = after_launch(searched, summary, code, settings)
        for line in next_lines(told):
            if "verify" not in line:  # it is pasted above
                paste(line)
        assert ("qsearch insight digits" in told) == (code == 1)
        assert ("# goes on from here" in told) == (code == 130)


@pytest.mark.parametrize("format", ["c", "onnx", "commands"])
def test_export_ends_with_a_command_that_works(searched: Path, format: str, capfd: Output) -> None:
    hw = ["--hw", "opu_q"] if format == "commands" else []
    assert run(["export", str(searched), "--format", format, *hw]) == 0
    told = capfd.readouterr().out
    (line,) = next_lines(told)
    paste(line)
    if "in Python:" in told:
        program = told[told.index("in Python:") :].partition("\n")[2]
        subprocess.run([sys.executable, "-c", program.replace("\n  ", "\n").strip()], check=True)


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_a_program_is_told_no_next_command(option: str, tmp_path: Path, capfd: Output) -> None:
    assert run(["launch", *TINY, "-o", str(tmp_path / "run"), option]) == 0
    told = capfd.readouterr()
    assert "qsearch verify" not in told.out + told.err
    if option == "--json":
        assert json.loads(told.out.splitlines()[-1])["module"]


@pytest.mark.slow
def test_compile_prints_next_commands_on_stderr(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["compile", "--model", "digits"]) == 0
    told = capfd.readouterr()
    assert told.out == "digits.qmod\n"
    lines = next_lines(told.err)
    assert lines == ["qsearch verify digits.qmod", "qsearch export digits.qmod --format c"]
    paste(lines[1])
    assert run(["compile", "--model", "digits", "-q"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("form", "told"), [("tflite", "tflite"), ("qdq", "qdq")])
def test_compile_for_a_form_ends_with_the_export_of_that_form(
    form: str, told: str, tmp_path: Path, capfd: Output
) -> None:
    out = str(tmp_path / "m.qmod")
    assert run(["compile", "digits", "--qconfig", f"auto,for={form}", "-o", out]) == 0
    assert f"qsearch export {out} --format {told}" in next_lines(capfd.readouterr().err)


@pytest.mark.slow
def test_export_of_litert_ends_with_a_command_that_works(tmp_path: Path, capfd: Output) -> None:
    for package in ("ai_edge_litert", "tflite_micro"):
        pytest.importorskip(package, reason=missing("the Python packages of the tests"))
    module = tmp_path / "my m.qmod"
    qsearch.quantize("digits", qconfig="auto,for=tflite").save(module)
    assert run(["export", str(module), "--format", "tflite"]) == 0
    (line,) = next_lines(capfd.readouterr().out)
    paste(line)


def test_what_comes_next_follows_how_the_search_ended() -> None:
    folder = Path("runs/m")
    best = {"qconfig": {"partition_conversions": "disabled"}}
    summary = {"module": "runs/m/best.qmod", "best": best}
    settings = Settings(model="m.onnx", calib="my calib", dim={"N": 2})
    assert "--format float" in after_launch(folder, summary, 0, settings)
    missed = after_launch(folder, summary, 1, settings)
    assert (
        "qsearch insight m.onnx --calib 'my calib' --qconfig runs/m/best.qmod --dim N=2" in missed
    )
    empty = {"module": None, "best": None}
    assert after_launch(folder, empty, 1, settings) == "next      qsearch dashboard runs/m"


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ("sqlite:///my studies.db", "qsearch dashboard --storage 'sqlite:///my studies.db'"),
        ("postgresql://me:secret@host/db", "qsearch dashboard  # where QSEARCH_STORAGE"),
    ],
)
def test_a_storage_is_named_and_its_password_is_not(storage: str, told: str) -> None:
    settings = Settings(model="m.onnx", storage=storage)
    shown = after_launch(Path("runs/m"), {"module": None, "best": None}, 1, settings)
    assert told in shown
    assert "secret" not in shown
