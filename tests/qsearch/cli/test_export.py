"""``qsearch export`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import qsearch
from compiler.runtime.artifact import load_qmod
from compiler.targets.c.toolchain import find_compiler
from qsearch.cli.main import run
from tests.each import each
from tests.needs import NEEDS_C, missing, skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.qmod"
    qsearch.quantize("digits").save(path)
    return path


@pytest.fixture(scope="module")
def for_qdq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qdq") / "digits.qmod"
    qsearch.quantize("digits", qconfig="auto,for=qdq").save(path)
    return path


def test_c_comes_with_a_self_check_and_its_memory(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), "--format", "c", "-o", str(tmp_path / "new")]) == 0
    shown = capfd.readouterr().out
    names = {"digits.h", "digits.c", "main.c"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    for word in (*names, "arena_bytes", "arena_lower_bound_bytes", "next: "):
        assert word in shown
    command = find_compiler()
    if command is None:
        skip("a C compiler")
    sources = [tmp_path / "new" / name for name in ("digits.c", "main.c")]
    subprocess.run([*command, "-std=c99", *sources, "-o", tmp_path / "check"], check=True)
    assert subprocess.run([tmp_path / "check"], check=False).returncode == 0


@pytest.mark.parametrize("form", ["onnx"])
def test_onnx_forms_give_the_bits_of_the_module(
    form: str, digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(digits), "--format", form, "-o", str(tmp_path), "--name", "n", "--json"]
    assert run(words) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["files"] == [str(tmp_path / "n.onnx")]
    model = onnx.load(tmp_path / "n.onnx")
    assert found["nodes"] == len(model.graph.node)
    assert found["inputs"] == ["input: float32[N, 1, 8, 8]"]
    assert found["outputs"] == ["logits: float32[N, 10]"]
    session = onnxruntime.InferenceSession(tmp_path / "n.onnx")
    module = load_qmod(digits)
    samples = list(module.samples)
    for inputs, outputs in samples:
        assert np.asarray(session.run(None, inputs)[0]).tobytes() == outputs[0].tobytes()
    joined = np.concatenate([inputs["input"] for inputs, _ in samples])
    wanted = np.concatenate([outputs[0] for _, outputs in samples])
    assert np.asarray(session.run(None, {"input": joined})[0]).tobytes() == wanted.tobytes()


def test_onnx_goes_to_the_named_file_or_beside_the_module(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "m.qmod"
    copy.write_bytes(digits.read_bytes())
    for words, name in (
        (["--format", "onnx", "-o", str(tmp_path / "new" / "x.onnx")], "new/x.onnx"),
        (["--format", "onnx", "--batch", "2"], "m.integer.onnx"),
        ([], "m_c/m.c"),
    ):
        assert run(["export", str(copy), *words]) == 0
        assert (tmp_path / name).is_file()
        assert f"{tmp_path / name}\n" in capfd.readouterr().out
    sizes = onnx.load(tmp_path / "m.integer.onnx").graph.input[0].type.tensor_type.shape
    assert sizes.dim[0].dim_value == 2
    for words in (["-o", str(tmp_path / "y.onnx")], ["--batch", "2"]):
        assert run(["export", str(copy), *words]) == 2
        assert "--format onnx" in capfd.readouterr().err


def test_an_exported_file_scores_as_its_module(digits: Path, tmp_path: Path) -> None:
    data = str(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    found = qsearch.export(digits, "onnx", tmp_path / "x.onnx")
    ours, theirs = (qsearch.run_module(path, data) for path in (found.files[0], digits))
    assert ours["outputs_sha256"] == theirs["outputs_sha256"]
    assert ours["executor"] == "onnxruntime"


@NEEDS_C
def test_a_run_says_what_ran_and_why(digits: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = str(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    said = []
    for words in ([], ["--executor", "reference"]):
        assert run(["run", str(digits), "--eval", data, "--json", *words]) == 0
        found = json.loads(capfd.readouterr().out)
        said.append((found["executor"], found["why"]))
    assert said == [("engine", ""), ("reference", "asked for")]


def test_a_module_on_integers_has_no_float_form(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), "--format", "float", "-o", str(tmp_path)]) == 2
    assert "onnx" in capfd.readouterr().err


def test_a_simulated_module_has_a_float_form(tmp_path: Path) -> None:
    module = qsearch.quantize("digits", qconfig="do_simulation=True,partition_conversions=disabled")
    module.save(tmp_path / "s.qmod")
    found = qsearch.export(tmp_path / "s.qmod", "float", tmp_path)
    assert onnx.load(found.files[0]).graph.output[0].name == "logits"


def test_unknown_formats_and_missing_files_are_bad_input(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), "--format", "cc", "-o", str(tmp_path / "x")]) == 2
    assert "did you mean 'c'" in capfd.readouterr().err
    assert not (tmp_path / "x").exists()
    assert run(["export", str(tmp_path / "none.qmod"), "-o", str(tmp_path)]) == 2
    taken = tmp_path / "taken"
    taken.write_text("a file")
    assert run(["export", str(digits), "-o", str(taken)]) == 2


def test_a_module_without_samples_gets_one(digits: Path, tmp_path: Path) -> None:
    module = load_qmod(digits)
    bare = tmp_path / "bare.qmod"
    type(module)(module.module).save(bare)
    found = qsearch.export(bare, "c", tmp_path)
    assert (tmp_path / "main.c") in found.files
    again = qsearch.export(bare, "c", tmp_path / "again")
    assert [p.read_bytes() for p in found.files] == [p.read_bytes() for p in again.files]


def test_the_module_runs_in_c_from_python(digits: Path) -> None:
    if find_compiler() is None:
        skip("a C compiler")
    module = load_qmod(digits)
    for inputs, outputs in each(module.samples):
        assert module.run(inputs, "c")[0].tobytes() == outputs[0].tobytes()


def test_a_module_with_floats_left_is_compared_within_a_tolerance(tmp_path: Path) -> None:
    module = qsearch.quantize("digits", qconfig="do_simulation=True,partition_conversions=disabled")
    module.save(tmp_path / "s.qmod")
    found = qsearch.export(tmp_path / "s.qmod", "c", tmp_path / "c")
    assert found.facts["self_check"] == "within 0.0001"
    command = find_compiler()
    if command is None:
        skip("a C compiler")
    sources = [path for path in found.files if path.suffix == ".c"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([*command, *flags, *sources, "-o", tmp_path / "check", "-lm"], check=True)
    assert subprocess.run([tmp_path / "check"], check=False).returncode == 0


def test_commands_of_an_accelerator_are_files_for_its_driver(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(digits), "--format", "commands", "--hw", "opu_q", "--json"]
    assert run([*words, "-o", str(tmp_path / "hw")]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["self_check"] == "bit by bit"
    listed = json.loads((tmp_path / "hw" / "digits.json").read_text())
    assert listed["cost"]["hw_groups"] == found["hw_groups"] == len(listed["groups"])
    assert {path.name for path in (tmp_path / "hw").iterdir()} == {
        Path(name).name for name in found["files"]
    }
    assert (tmp_path / "hw" / "digits.txt").read_text().startswith("# main on opu_q: ")
    for group in listed["groups"]:
        assert json.loads((tmp_path / "hw" / f"{group}.json").read_text())["commands"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "commands"], "add --hw opu_q"),
        (["--format", "c", "--hw", "opu_q"], "choose --format commands"),
        (["--format", "commands", "--hw", "opuq"], "did you mean 'opu_q'"),
    ],
)
def test_commands_need_an_accelerator_and_other_formats_take_none(
    words: list[str], said: str, digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), *words, "-o", str(tmp_path / "out")]) == 2
    assert said in capfd.readouterr().err


def test_a_module_of_other_bits_is_told_how_one_for_qdq_is_made(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), "--format", "qdq"]) == 2
    said = capfd.readouterr().err
    assert "a value has 16 bits" in said
    assert "qsearch compile --qconfig auto,for=qdq" in said


@pytest.mark.parametrize(
    ("pairs", "weight_scale"), [(True, "mse"), (False, "mse"), (True, "pairs")]
)
def test_a_loss_of_the_processor_names_the_reduced_range(
    pairs: bool,
    weight_scale: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("compiler.targets.engine.library.adds_pairs", lambda: pairs)
    module = tmp_path / "m.qmod"
    config = f"auto,for=qdq,weight_scale={weight_scale}"
    qsearch.quantize("digits", qconfig=config).save(module)
    words = ["export", str(module), "--format", "qdq", "-o", str(tmp_path / "q.onnx"), "--json"]
    assert run(words) == 0
    told = json.loads(capfd.readouterr().out).get("warning", "")
    assert ("add --reduce-range" in told) == (pairs and weight_scale == "mse")
    assert "--for qdq" not in told
    assert run([*words, "--reduce-range"]) == 0
    assert "warning" not in json.loads(capfd.readouterr().out)


def test_qdq_is_scored_as_the_module_is(
    for_qdq: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = str(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    words = ["export", str(for_qdq), "--format", "qdq", "--json"]
    file = str(tmp_path / "q.onnx")
    assert run([*words, "-o", file]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["in_8_bits"].startswith("100.00% of")
    scored = []
    for path in (file, str(for_qdq)):
        assert run(["run", path, "--eval", data, "--json"]) == 0
        scored.append(json.loads(capfd.readouterr().out))
    assert [one["n"] for one in scored] == [400, 400]
    assert abs(scored[0]["top1"] - scored[1]["top1"]) <= 0.01


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reduce-range"], "--format qdq"),
    ],
)
def test_options_of_another_format_are_refused(
    words: list[str], said: str, digits: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["export", str(digits), *words, "-o", str(tmp_path / "x")]) == 2
    assert said in capfd.readouterr().err


@pytest.fixture(scope="module")
def for_tflm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("ai_edge_litert", "tflite_micro"):
        pytest.importorskip(package, reason=missing("the Python packages of the tests"))
    path = tmp_path_factory.mktemp("tflm") / "digits.qmod"
    qsearch.quantize("digits", qconfig="auto,for=tflite").save(path)
    return path


@pytest.mark.slow
def test_a_litert_file_is_written_checked_and_verified(
    for_tflm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "d.tflite"
    words = ["export", str(for_tflm), "--format", "tflite", "-o", str(target), "--json"]
    assert run(words) == 0
    facts = json.loads(capfd.readouterr().out)
    assert target.read_bytes()[4:8] == b"TFL3"
    assert facts["bytes"] == target.stat().st_size
    assert facts["self_check"].startswith("0 of ")
    assert "input input" in facts
    proof = tmp_path / "p.json"
    assert run(["verify", str(for_tflm), "--tflite", str(target), "-o", str(proof)]) == 0
    shown = capfd.readouterr().out
    for judge in ("d.tflite in TFLM", "d.tflite in LiteRT's reference kernels"):
        (line,) = (line for line in shown.splitlines() if judge in line)
        assert ", 0 of" in line
    assert "d.tflite in XNNPACK" in shown


def test_verify_counts_the_integers_of_a_file_of_another_module(
    for_tflm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.qmod"
    qsearch.quantize("digits", qconfig="requantization=tflite,calibrate_mode=max").save(other)
    target = tmp_path / "d.tflite"
    assert run(["export", str(other), "--format", "tflite", "-o", str(target)]) == 0
    proof = tmp_path / "p.json"
    assert run(["verify", str(for_tflm), "--tflite", str(target), "-o", str(proof)]) == 1
    found = json.loads(proof.read_text())
    assert {one["check"] for one in found["findings"]} == {"tflite"}
    assert run(["verify", str(for_tflm), "--tflite", str(other)]) == 2
    assert "fix: " in capfd.readouterr().err


def test_a_litert_file_comes_as_a_c_array_too(
    for_tflm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.cc"
    words = ["export", str(for_tflm), "--format", "tflite", "--io", "float", "-o", str(target)]
    assert run([*words, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    text = target.read_text()
    assert "alignas(16) extern const unsigned char model[] = {" in text
    assert f"model_len = {facts['bytes']};" in text
    assert text.count("0x") == facts["bytes"]
    assert "1 x DEQUANTIZE" in facts["operators"]


def test_without_its_packages_a_litert_file_names_the_extra(
    digits: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.schema_py_generated", None)
    assert run(["export", str(digits), "--format", "tflite"]) == 2
    assert "pip install 'qsearch[tflite]'" in capfd.readouterr().err


def test_a_module_for_other_targets_is_told_how_one_for_litert_is_made(
    digits: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(digits), "--format", "tflite"]) == 2
    assert "--qconfig auto,for=tflite" in capfd.readouterr().err


@pytest.mark.usefixtures("for_tflm")
def test_a_factor_behind_a_product_of_two_tensors_is_the_scale_of_one(tmp_path: Path) -> None:
    """Gelu of a norm as PaddlePaddle writes it: its last factor stands in no operator."""
    rng = np.random.default_rng(0)
    held = {
        "w": rng.normal(0, 0.3, (16, 16)),
        "b": rng.normal(0, 0.1, 16),
        "ones": np.ones(16),
        "zeros": np.zeros(16),
        "root": np.array(2**0.5),
        "one": np.array(1),
        "half": np.array(0.5),
    }
    steps = {
        "m": ("MatMul", "x w"),
        "a": ("Add", "m b"),
        "n": ("LayerNormalization", "a ones zeros"),
        "d": ("Div", "n root"),
        "e": ("Erf", "d"),
        "s": ("Add", "e one"),
        "p": ("Mul", "n s"),
        "y": ("Mul", "p half"),
    }
    graph = helper.make_graph(
        [helper.make_node(name, read.split(), [made]) for made, (name, read) in steps.items()],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 10, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v.astype(np.float32), name) for name, v in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    calib = rng.normal(size=(32, 10, 16)).astype(np.float32)
    made = qsearch.quantize(model, {"x": calib}, "auto,requantization=tflite")
    made.save(tmp_path / "m.qmod")
    found = qsearch.export(tmp_path / "m.qmod", "tflite", tmp_path / "m.tflite")
    assert "0 of" in found.facts["self_check"]
