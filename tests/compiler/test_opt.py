from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compiler.ir.parser import parse
from compiler.opt import main, run_passes

SOURCE = """
def @main(%x: Tensor[(2, 4), float32]) {
  %0 = nn.dropout(%x);
  nn.relu(%0.0)
}
"""


def test_passes_run_in_the_order_of_the_text() -> None:
    shown = run_passes(SOURCE, "SimplifyInference")
    assert "nn.dropout" not in shown
    assert "nn.relu(%x)" in shown


def test_types_are_shown_on_request() -> None:
    assert "/* ty=Tensor[(2, 4), float32] */" in run_passes(SOURCE, "", show_types=True)


def test_the_command_line_prints_the_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.relay"
    path.write_text(SOURCE)
    assert main(["-p", "SimplifyInference", str(path)]) == 0
    assert capsys.readouterr().out.startswith('#[version = "0.0.5"]\ndef @main(')


@pytest.mark.parametrize(
    ("source", "passes", "part"),
    [
        ("def @main( {", "", "1:12"),
        (SOURCE, "SimplifyInferense", "did you mean 'SimplifyInference'"),
        ("def @main(%x) { %x }", "", "could not infer"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, passes: str, part: str
) -> None:
    path = tmp_path / "f.relay"
    path.write_text(source)
    assert main(["-p", passes, str(path)]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert "Traceback" not in said


@pytest.mark.parametrize("program", ["compiler.opt", "compiler.ops"])
def test_a_reader_that_leaves_early_is_no_error(program: str, tmp_path: Path) -> None:
    path = tmp_path / "f.relay"
    path.write_text(SOURCE)
    arguments = [str(path)] if program == "compiler.opt" else []
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, b"BrokenPipe" in done.stderr) == (0, False)


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.relay"]) == 2
    assert "nowhere.relay" in capsys.readouterr().err


def test_dumped_modules_are_numbered_and_parse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.relay"
    path.write_text(SOURCE)
    folder = tmp_path / "ir"
    arguments = ["-p", "SimplifyInference,FoldConstant", "--dump-ir", str(folder), "--stats"]
    assert main([*arguments, str(path)]) == 0
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["000_input.relay", "001_SimplifyInference.relay"]
    for name in names:
        parse((folder / name).read_text("utf-8"))
    said = capsys.readouterr().err
    assert re.search(r"SimplifyInference +\d+ → \d+ +2 → 1", said)
    assert re.search(r"SimplifyInference +[\d.]+ ms", said)
