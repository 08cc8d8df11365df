"""Bad input: one clear message with what, where and how to fix it, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from compiler.passes import fold_constant
from qsearch.cli.main import run
from qsearch.opening.model_file import find_model

pytestmark = pytest.mark.usefixtures("quick_space")

Refusal = Callable[..., str]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refusal:
    """Run a command line that must be refused; its message."""

    def call(*words: object) -> str:
        code = run([str(word) for word in words])
        out, err = capfd.readouterr()
        assert code == 2, err
        assert out == ""
        assert err.count("error: ") == 1, err
        assert "Traceback" not in err
        assert "  fix: " in err
        return err

    return call


def small_model(path: Path, op: str = "Relu", shape: tuple[int, ...] = (1, 4)) -> Path:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="node_7")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    return path


def launch(tmp_path: Path, model: object = "digits", *more: object) -> tuple[object, ...]:
    words = ("launch", "--model", model, "--pool", "inline", "--trials", 1)
    return (*words, "-o", tmp_path / "run", "-q", *more)


def test_a_missing_model(refused: Refusal, tmp_path: Path) -> None:
    small_model(tmp_path / "good.onnx")
    message = refused(*launch(tmp_path, tmp_path / "godo.onnx"))
    assert "godo.onnx" in message
    assert "did you mean 'good.onnx'" in message


def test_a_file_that_is_not_onnx(refused: Refusal, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("hello, this is not a model")
    assert "not an ONNX model" in refused(*launch(tmp_path, path))


def test_a_truncated_model(refused: Refusal, tmp_path: Path) -> None:
    data = find_model("digits").path.read_bytes()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: len(data) // 2])
    assert "damaged or cut off" in refused(*launch(tmp_path, path))


def test_an_unsupported_operator_names_node_and_operator(refused: Refusal, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"], name="node_7")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    message = refused(*launch(tmp_path, path))
    assert "NonZero" in message
    assert "node_7" in message


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"input": np.zeros((3, 1, 9, 8), np.float32)}, ["[3, 1, 9, 8]", "[1, 1, 8, 8]"]),
        ({"input": np.zeros((3, 1, 8, 8), np.uint8)}, ["uint8", "float32"]),
        ({"input": np.zeros((0, 1, 8, 8), np.float32)}, ["empty"]),
        ({"input": np.full((3, 1, 8, 8), np.nan, np.float32)}, ["nan"]),
    ],
    ids=["shapes", "dtypes", "empty", "nan"],
)
@pytest.mark.parametrize("flag", ["--calib", "--eval"])
def test_data_that_does_not_fit(
    refused: Refusal, tmp_path: Path, flag: str, arrays: dict[str, object], says: list[str]
) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    message = refused(*launch(tmp_path, "digits", flag, path))
    assert all(word in message for word in says), message
    assert "d.npz" in message


def test_data_that_is_missing_or_damaged(refused: Refusal, tmp_path: Path) -> None:
    assert "does not exist" in refused(*launch(tmp_path, "digits", "--calib", "none.npz"))
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 broken")
    message = refused(*launch(tmp_path, "digits", "--calib", tmp_path / "d.npz"))
    assert "cannot read" in message


def test_an_empty_image_folder(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "pre.yaml").write_text("mean: 0\nstd: 16\n")
    options = ("--calib", tmp_path / "images", "--preprocess", tmp_path / "pre.yaml")
    assert "no image" in refused(*launch(tmp_path, "digits", *options))


@pytest.mark.parametrize(
    ("qconfig", "says"),
    [
        ("weight_scal=max", ["weight_scal", "did you mean 'weight_scale'"]),
        ("weight_scale=maks", ["maks", "max"]),
        ("calibrate_mode=percentil", ["percentil", "percentile"]),
        ("nonsense", ["nonsense"]),
        ("none.json", ["none.json"]),
    ],
)
def test_an_unknown_qconfig_key_or_value(
    refused: Refusal, tmp_path: Path, qconfig: str, says: list[str]
) -> None:
    message = refused(
        "compile", "--model", "digits", "--qconfig", qconfig, "-o", tmp_path / "m.qmod"
    )
    assert all(word in message for word in says), message


def test_a_qconfig_of_many_brackets(refused: Refusal, tmp_path: Path) -> None:
    given = tmp_path / "q.json"
    given.write_text("[" * 100_000)
    message = refused("doctor", "--model", "digits", "--qconfig", given)
    assert "not valid json" in message


@pytest.mark.parametrize(
    "storage",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/none",
        "sqlite:////no/such/folder/study.db",
        "mysql://u@h/d",
        "nonsense",
    ],
)
def test_a_storage_that_cannot_be_reached(refused: Refusal, tmp_path: Path, storage: str) -> None:
    message = refused(*launch(tmp_path, "digits", "--storage", storage))
    assert "hunter2" not in message


def test_a_run_folder_that_cannot_be_written(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    assert "run folder cannot be written" in refused(*launch(tmp_path))


def test_a_run_folder_of_another_model(refused: Refusal, tmp_path: Path) -> None:
    other = small_model(tmp_path / "other.onnx")
    (tmp_path / "run").mkdir()
    sha256 = find_model(other).sha256
    (tmp_path / "run" / "config.resolved.yaml").write_text(
        f"# model_sha256: {sha256}\nmodel: {other}\n"
    )
    message = refused(*launch(tmp_path))
    assert "belongs to another model" in message
    assert "other.onnx" in message
    assert "--fresh" in message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lunch"], "Did you mean 'launch'"),
        (["launch", "--modle", "m"], "Did you mean one of: '--model'"),
        (["launch"], "no model was given"),
        (["launch", "--model", "digits", "--trials", "x"], "trials cannot be 'x'"),
        (["launch", "--model", "digits", "--metric", "top"], "did you mean 'top1'"),
        (["launch", "--model", "digits", "extra"], "the model is given twice"),
        (["launch", "digits", "--model", "extra"], "the model is given twice"),
        (["launch", "digits", "extra"], "unexpected extra argument (extra)"),
        (["resume", "runs/m"], "No such command 'resume'"),
        (["compile", "digits", "-o", "digits.onnx"], "name it digits.qmod; `qsearch export`"),
        (["doctor"], "no model was given"),
        (["insight", "--calib", "x.npz"], "no model was given"),
        (["trials", "--limit", "0"], "0 is not in the range x>=1"),
        (["launch", "digits", "--max-drop", "much"], "expected a drop of 0..1 (0.01) or 0..100%"),
        (["launch", "digits", "--timeout", "nan"], "expected seconds > 0"),
        (["launch", "--model", "digits", "--metrik", "sqnr"], "Did you mean one of: '--metric'"),
        (["run", "best.qmod", "--evl", "x.npz"], "Did you mean one of: '--eval'"),
        (["launch", "digits", "--max-size", "big"], "expected a size > 0, such as 2G"),
        (["launch", "digits", "--at-most", "hw_group=3"], "did you mean 'hw_groups'"),
        (["launch", "digits", "--at-most", "size=3"], "--max-size"),
        (["launch", "digits", "--at-most", "latency=fast"], "expected a number for latency"),
        (["launch", "digits", "--at-most", "hw_groups=3"], "needs an accelerator"),
        (["launch", "digits", "--pool", "process", "--address", "auto"], "joins no cluster"),
        (["launch", "digits", "--metric", "size", "--minimize", "size"], "is the metric already"),
        (["status"], "no study was found"),
        (["status", "no/such/run"], "no study was found"),
        (["trials", "no/such/run"], "no study was found"),
        (["show", "none.onnx"], "there is no model 'none.onnx'"),
        (["show", "."], "there is no best.qmod in ."),
        (["diff", ".", "digits"], "there is no best.qmod in ."),
        (["verify", "."], "there is no best.qmod in ."),
        (["export", ".", "--format", "c", "-o", "c"], "there is no best.qmod in ."),
        (["run", "none.qmod", "--eval", "x.npz"], "none.qmod"),
        (["show", "digits", "--after", "FoldConstnat"], "did you mean 'FoldConstant'"),
        (["delete"], "name a run folder, or --storage and --study"),
        (["delete", "no/such/run", "--yes"], "no study was found"),
        (["dashboard", "no/such/run"], "there is no folder no/such/run"),
        (["dashboard", __file__], "is a file, not a folder"),
        (["dashboard", "--storage", "sqlite:///no/such/s.db"], "no folder for the database"),
        (["dashboard", "--port", "70000"], "70000 is no port"),
        (["dashboard", "--host", "192.0.2.1", "--token", "0" * 16], "address of this mach"),
    ],
)
def test_a_command_line_that_means_nothing(
    refused: Refusal, words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(*words)


@pytest.mark.parametrize("flag", ["--metric", "--sampler"])
def test_missing_user_code_leaves_no_study_behind(
    refused: Refusal, tmp_path: Path, flag: str
) -> None:
    message = refused(*launch(tmp_path, "digits", flag, "no_such_module:name"))
    assert "No module named 'no_such_module'" in message
    assert run([str(word) for word in launch(tmp_path)]) == 0


def test_top1_without_labels(refused: Refusal, tmp_path: Path) -> None:
    data = tmp_path / "d.npz"
    np.savez(data, input=np.zeros((3, 1, 8, 8), np.float32))
    message = refused(*launch(tmp_path, "digits", "--eval", data, "--metric", "top1"))
    assert "needs labels" in message


LONG = "a" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", LONG),
        ("show", LONG),
        ("verify", LONG),
        ("status", LONG),
        ("launch", "--model", "digits", "--calib", LONG),
        ("launch", "--model", "digits", "--storage", f"sqlite:///{LONG}"),
        ("launch", "--model", "digits", "-o", LONG),
        ("dashboard", "--storage", f"sqlite:///{LONG}"),
    ],
)
def test_a_name_of_5000_letters(
    refused: Refusal, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(refused(*words)) < 1000


@pytest.mark.slow
def test_a_full_disk_is_told_with_the_path(tmp_path: Path) -> None:
    module = tmp_path / "m.qmod"
    # -B: bytecode that is cut off at the limit would be read by the processes of other tests.
    limited = f"ulimit -f 8; exec {sys.executable} -B -m qsearch compile digits -o {module}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert str(tmp_path) in done.stderr
    assert "unforeseen" not in done.stderr
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [sys.executable, "-m", "qsearch", "doctor", "digits"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert shown.returncode == 2, shown.stderr
    assert "No space left on device" in shown.stderr
    assert "standard output" in shown.stderr
    assert "Exception ignored" not in shown.stderr


@pytest.mark.parametrize("command", [["compile"], ["show"], ["doctor", "--space-out"]])
def test_what_a_command_reads_is_not_replaced_by_what_it_writes(
    refused: Refusal, command: list[str], tmp_path: Path
) -> None:
    model = small_model(tmp_path / "m.onnx")
    held = model.read_bytes()
    name, option = command[0], command[-1] if len(command) > 1 else "-o"
    assert "its result would replace it" in refused(name, model, option, model)
    assert model.read_bytes() == held


def test_a_setting_that_is_given_twice(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("trials: 2\nseed: 1\ntrials: 3\n")
    assert "'trials' is given twice" in refused(*launch(tmp_path), "-c", tmp_path / "twice.yaml")


def test_a_run_folder_instead_of_a_model(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "config.resolved.yaml").write_text("model: digits\n")
    message = refused("launch", tmp_path)
    assert f"qsearch launch -c {tmp_path}/config.resolved.yaml -o {tmp_path}" in message


def test_data_on_another_scale_than_the_module_was_made_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small_model(tmp_path / "m.onnx")
    values = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for name, data in {"same": values, "raw": values * 100, "unit": np.abs(values)}.items():
        np.savez(f"{name}.npz", x=data)
    assert run(["compile", "m.onnx", "--calib", "same.npz", "-q"]) == 0
    for name, told in {"same": False, "raw": True, "unit": True}.items():
        assert run(["run", "m.qmod", "--eval", f"{name}.npz"]) == 0
        assert ("warning: 'x' has values from" in capfd.readouterr().err) == told


@pytest.mark.parametrize("command", ["doctor", "compile", "launch"])
def test_a_model_of_tensors_without_elements(
    refused: Refusal, tmp_path: Path, command: str
) -> None:
    model = small_model(tmp_path / "m.onnx", shape=(1, 0))
    message = refused(command, "--model", model, *(["-o", tmp_path] if command != "doctor" else []))
    assert "input 'x' has a dimension of size 0: [1, 0]" in message


@pytest.mark.parametrize("command", ["doctor", "compile", "launch"])
def test_a_weight_that_folding_leaves_alone(
    refused: Refusal,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fold_constant, "MAX_RESULT_BYTES", 0)
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["s"], ["w"], value=from_array(np.float32([0.1]))),
            helper.make_node("MatMul", ["x", "v"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 300))],
        [
            from_array(np.array([512, 300]), "s"),
            from_array(np.ones((4, 512), np.float32), "v"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    if command == "doctor":
        assert run(["doctor", "--model", str(tmp_path / "m.onnx")]) == 1
        message = capfd.readouterr().out
    else:
        message = refused(command, "--model", tmp_path / "m.onnx", "-o", tmp_path / "o")
    assert "full" in message
    assert "params=" not in message


def test_a_result_that_cannot_be_written_asks_for_another_place(
    refused: Refusal, tmp_path: Path
) -> None:
    told = refused("doctor", "digits", "--space-out", tmp_path)
    assert "name another file with --space-out" in told
    assert "trials" not in told
