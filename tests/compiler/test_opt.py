from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compiler import transform
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.pass_infra import PassContext
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
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


SHARED_SUM = """
def @main(%x: Tensor[(2, 4), float32]) {
  %0 = exp(%x);
  %1 = exp(%x);
  add(%0, %1)
}
"""


def test_a_named_pass_runs_whatever_its_level_unless_a_level_is_given() -> None:
    assert run_passes(SHARED_SUM, "EliminateCommonSubexpr").count("exp(") == 1
    limited = run_passes(SHARED_SUM, "EliminateCommonSubexpr", opt_level=2)
    assert limited.count("exp(") == 2


def test_the_passes_of_a_pass_run_with_it() -> None:
    source = """
    #[version = "0.0.5"]
    def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32],
              %s: Tensor[(4, 1, 1), float32]) {
      %0 = nn.conv2d(%x, %w);
      multiply(%0, %s)
    }
    """
    with PassContext(opt_level=0):
        folded = transform.FoldScaleAxis()(infer_module(parse(source)))
    assert text(folded).rstrip().splitlines()[-2].lstrip().startswith("nn.conv2d(")


def test_the_list_names_every_pass_with_level_options_and_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = {line.split()[0]: line.split()[1] for line in lines if not line.startswith(" ")}
    published = {
        name: str(cls.info.opt_level)
        for name, cls in transform.registered_passes().items()
        if cls.__module__.startswith("compiler.")
    }
    assert published.items() <= head.items()
    assert 'hdfg="opu"' in "\n".join(lines)
    assert all(len(line.split()) > 2 for line in lines if not line.startswith(" "))


def test_without_a_file_the_usage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["-p", "InferType"])
    assert stopped.value.code == 2
    assert "--list" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.relay"]) == 2
    assert "nowhere.relay" in capsys.readouterr().err


def test_passes_of_ones_own_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_opt_pass.py").write_text(
        "from compiler.transform import module_pass\n"
        "@module_pass(name='OwnOptPass')\n"
        "def own(mod, ctx):\n"
        "    return mod.without('main')\n"
    )
    path = tmp_path / "f.relay"
    path.write_text(SOURCE)
    assert main(["-p", "OwnOptPass", str(path)]) == 2
    assert main(["--import", str(tmp_path / "own_opt_pass.py"), "-p", "OwnOptPass", str(path)]) == 0
    assert "@main" not in capsys.readouterr().out
    assert main(["--import", "nowhere.at_all", str(path)]) == 2
    assert "nowhere" in capsys.readouterr().err


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
