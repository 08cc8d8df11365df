"""``qsearch show`` and ``qsearch diff`` as a user meets them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

import compiler
from compiler.runtime.artifact import load_qmod
from qsearch.cli.main import run
from qsearch.cli.output import print_coloured, table
from qsearch.opening.model_file import find_model

pytestmark = pytest.mark.usefixtures("quick_space")

Output = pytest.CaptureFixture[str]


def changed_digits(tmp_path: Path) -> Path:
    """The shipped model with the weights of its last layer a little off."""
    model = onnx.load(find_model("digits").path)
    last = model.graph.node[-1]
    for tensor in model.graph.initializer:
        if tensor.name == last.input[1]:
            data = numpy_helper.to_array(tensor) * np.float32(1.01)
            tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
    path = tmp_path / "changed.onnx"
    onnx.save(model, path)
    return path


def test_show_prints_text_that_the_parser_reads(capfd: Output) -> None:
    assert run(["show", "digits"]) == 0
    shown = capfd.readouterr().out
    assert "nn.conv2d" in shown
    assert compiler.parse(shown)


def test_constants_are_printed_in_full_where_asked_for(tmp_path: Path, capfd: Output) -> None:
    module, written = tmp_path / "m.qmod", tmp_path / "m.relay"
    assert run(["compile", "--model", "digits", "-o", str(module)]) == 0
    whole = load_qmod(module).module
    capfd.readouterr()
    assert run(["show", str(module)]) == 0
    brief = capfd.readouterr().out
    assert re.search(r"// meta\[relay.Constant\]\[\d+\]: int8 \(16, 1, 3, 3\), sha256", brief)
    assert max(map(len, brief.splitlines())) < 300
    assert run(["show", str(module), "--full"]) == 0
    printed = capfd.readouterr().out
    assert run(["show", str(module), "-o", str(written)]) == 0
    for full in (printed, written.read_text("utf-8")):
        assert compiler.structural_equal(compiler.parse(full), whole)
    written.write_text(brief, "utf-8")
    assert run(["diff", str(written), str(module)]) == 2
    assert "qsearch show --full" in capfd.readouterr().err


def test_passes_run_before(capfd: Output) -> None:
    assert run(["show", "digits", "--after", "SimplifyInference,FoldConstant"]) == 0
    assert "nn.conv2d" in capfd.readouterr().out


RELU = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(1, 4), float32]) { nn.relu(%x) }'
SHARED_SUM = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 4), float32]) {
  %0 = exp(%x);
  %1 = exp(%x);
  add(%0, %1)
}
"""


SCALED = """
#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32],
          %s: Tensor[(4, 1, 1), float32]) {
  %0 = nn.conv2d(%x, %w);
  multiply(%0, %s)
}
"""


def test_a_pass_that_is_named_runs_whatever_its_level(tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "m.relay"
    source.write_text(SHARED_SUM)
    assert run(["show", str(source), "--after", "EliminateCommonSubexpr"]) == 0
    assert capfd.readouterr().out.count("exp(") == 1


def test_a_pass_that_is_made_of_passes_runs_them_all(tmp_path: Path, capfd: Output) -> None:
    source = tmp_path / "m.relay"
    source.write_text(SCALED)
    assert run(["show", str(source), "--after", "FoldScaleAxis"]) == 0
    shown = capfd.readouterr().out
    assert "multiply(%w" in shown
    assert "multiply(%0" not in shown


@pytest.mark.parametrize("format", ["json", "dot"])
def test_a_drawing_goes_to_a_file(format: str, tmp_path: Path, capfd: Output) -> None:
    path = tmp_path / f"m.{format}"
    assert run(["show", "digits", "--format", format, "-o", str(path)]) == 0
    assert capfd.readouterr().out == ""
    assert "nn.conv2d" in path.read_text("utf-8")


def test_an_unknown_format_is_bad_input(capfd: Output) -> None:
    assert run(["show", "digits", "--format", "html"]) == 2
    assert "'html' is not one of 'text', 'dot', 'json'" in capfd.readouterr().err


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path, capfd: Output) -> None:
    path = tmp_path / "missing" / "m.dot"
    assert run(["show", "digits", "--format", "dot", "-o", str(path)]) == 2
    assert "cannot be written" in capfd.readouterr().err


def test_output_that_is_no_terminal_has_no_colour(capfd: Output) -> None:
    assert run(["show", "digits"]) == 0
    assert "\x1b[" not in capfd.readouterr().out


def test_a_terminal_gets_colours_and_every_character() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=40, highlight=False)
    line = '  %0 = nn.relu(%x) /* ty=Tensor[(1, 8), int8] */; [bold]"a"[/bold]'
    print_coloured(line, console)
    shown = stream.getvalue()
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain == line + "\n"


def test_diff_of_a_model_with_itself(capfd: Output) -> None:
    assert run(["diff", "digits", "digits"]) == 0
    assert "outputs equal; no node differs" in capfd.readouterr().out


def test_diff_names_the_node_that_was_changed(tmp_path: Path, capfd: Output) -> None:
    path = changed_digits(tmp_path)
    assert run(["diff", "digits", str(path), "--json", "--samples", "2"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["first"]["name"] == "gemm_0"
    assert found["first"]["snr_db"] == pytest.approx(40, abs=0.1)
    assert not found["equal"]
    assert run(["diff", "digits", str(path), "--rtol", "0.1", "--atol", "1"]) == 0


def test_diff_takes_ir_text_and_data(tmp_path: Path, capfd: Output) -> None:
    source = find_model("digits")
    text = tmp_path / "m.relay"
    text.write_text(RELU, "utf-8")
    data = tmp_path / "x.npz"
    np.savez(data, x=np.ones((3, 4), np.float32))
    assert run(["diff", str(text), str(text), "--eval", str(data)]) == 0
    assert source.eval is not None
    assert run(["diff", "digits", "digits", "--eval", str(source.eval), "--samples", "3"]) == 0
    capfd.readouterr()


@pytest.mark.parametrize(
    "words", [["nothere.onnx", "digits"], ["digits", "nothere.qmod"], ["nothere.relay", "digits"]]
)
def test_diff_of_a_missing_file_is_bad_input(words: list[str], capfd: Output) -> None:
    assert run(["diff", *words]) == 2
    err = capfd.readouterr().err
    assert "nothere" in err
    assert "Traceback" not in err


def test_diff_of_modules_with_other_inputs_is_bad_input(tmp_path: Path, capfd: Output) -> None:
    text = tmp_path / "m.relay"
    text.write_text(RELU, "utf-8")
    assert run(["diff", "digits", str(text)]) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--dim", "W=4", "--dim", "x:2=5"],
        ["--dim", "x:2=5", "--dim", "x:3=4"],
    ],
)
def test_sizes_that_the_model_leaves_open_are_given(
    options: list[str], tmp_path: Path, capfd: Output
) -> None:
    assert run(["show", str(open_model(tmp_path)), *options]) == 0
    assert "Tensor[(1, 3, 5, 4), float32]" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dim", "W=4"], r"--dim x:2=…"),
        (
            ["--dim", "x:1=4", "--dim", "W=4", "--dim", "x:2=5"],
            "dimension 1 is 3 in the model, not 4",
        ),
        (["--dim", "x"], "expected NAME=N"),
        (["--dim", "y:1=4"], "dimension 'y:1'"),
    ],
)
def test_sizes_that_do_not_fit_are_told(
    options: list[str], said: str, tmp_path: Path, capfd: Output
) -> None:
    assert run(["show", str(open_model(tmp_path)), *options]) == 2
    assert re.search(said, capfd.readouterr().err)


def open_model(tmp_path: Path) -> Path:
    """An input of four axes: named, fixed, without a name, named."""
    value_info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value_info("x", onnx.TensorProto.FLOAT, ["N", 3, None, "W"])],
        [value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    opset = onnx.helper.make_opsetid("", 17)
    path = tmp_path / "open.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_diff_without_data_uses_the_samples_in_the_module(tmp_path: Path, capfd: Output) -> None:
    run(["launch", "digits", "--trials", "1", "--pool", "inline", "-o", str(tmp_path / "r"), "-q"])
    capfd.readouterr()
    assert run(["diff", "digits", str(tmp_path / "r"), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["outputs"][0]["snr_db"] > 25, "inputs that the ranges were measured on"


def test_long_names_of_nodes_leave_room_for_what_is_said_of_them() -> None:
    name = "StatefulPartitionedCall/model/block_1_expand/Conv2D"
    rows = [{"node": f"{name}_{n}", "reason": "a reason of some words", "dB": n} for n in (1, 2)]
    lines = table(rows, 60).splitlines()
    assert [line.split()[0][-8:] for line in lines[1:]] == ["Conv2D_1", "Conv2D_2"]
    assert all("a reason of some words" in line for line in lines[1:])
    assert max(map(len, lines)) <= 60
    assert name in table(rows)


def test_a_table_of_insight_fits_a_terminal_with_every_column() -> None:
    name = "StatefulPartitionedCall/functional_1/block_{}_expand/separable_conv/Conv2D"
    row = {"operator": "nn.conv2d_transpose", "SQNR dB": "38.5", "agreement %": "99.50"}
    rows = [{"number": n, "layer": name.format(n), **row, "points": "1 2"} for n in (1, 12)]
    lines = table(rows, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [
        "number",
        "layer",
        "operator",
        "SQNR",
        "dB",
        "agreement",
        "%",
        "points",
    ]
    assert ["block_1_" in lines[1], "block_12_" in lines[2]] == [True, True]


def test_cells_without_a_value_are_not_empty() -> None:
    assert (
        table([{"layer": "", "why": "x"}, {"layer": "conv", "why": "y"}]).splitlines()[1][0] == "-"
    )
