"""``qsearch doctor`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from compiler.targets.engine.library import detected_isa
from qsearch.cli.main import run
from tests.compiler.quantize.test_integer_products import dense_model

Output = pytest.CaptureFixture[str]


def model_with_an_island(path: Path, name: str = "island") -> Path:
    """Two convolutions with a remainder in between; batch and width are open."""
    weights = [
        numpy_helper.from_array(np.full((2, 2, 1, 1), 0.5, np.float32), name) for name in "abc"
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "a"], ["t"], name="first"),
            helper.make_node("Mod", ["t", "c"], ["u"], name=name, fmod=1),
            helper.make_node("Conv", ["u", "b"], ["y"], name="second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 4, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 4, "width"])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_model_that_can_be_integer_exits_zero(capfd: Output) -> None:
    assert run(["doctor", "--model", "digits"]) == 0
    shown = capfd.readouterr().out
    assert "14 operators integer, 0 float" in shown
    assert "integers only: yes" in shown
    assert f"kernels of the engine on this machine: {detected_isa()}" in shown
    assert "conv_0" not in shown
    assert "--dim N=…" in shown
    assert run(["doctor", "--model", "digits", "-v"]) == 0
    shown = capfd.readouterr().out
    assert shown.index("integers only: yes") < shown.index("conv_0")


def test_a_model_with_an_island_names_it_and_exits_one(tmp_path: Path, capfd: Output) -> None:
    path = model_with_an_island(tmp_path / "m.onnx")
    assert run(["doctor", "--model", str(path), "--dim", "width=4"]) == 1
    shown = capfd.readouterr().out
    assert "island" in shown
    assert "1 x trunc_mod (no integer form)" in shown
    assert "trunc_mod has no rule in QuantizeAnnotate" in shown
    assert "integers only: no" in shown


def test_long_names_fit_a_terminal_of_80_letters(
    tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("models", "output"):
        monkeypatch.setattr(f"qsearch.cli.{module}.terminal_width", lambda: 80)
    name = "/model/backbone/" + "/".join(f"block_{n}/attention" for n in range(8))
    path = model_with_an_island(tmp_path / f"{'trained_for_months_' * 5}.onnx", name)
    assert run(["doctor", "--model", str(path), "--dim", "width=4"]) == 1
    shown = capfd.readouterr().out
    assert "_7/attention" in shown
    # Only what keeps the model from integers has the name whole, for --until.
    assert [line.strip() for line in shown.splitlines() if len(line) > 80] == [f"'{name}')"]


def test_json_holds_every_operator_and_the_open_dimensions(tmp_path: Path, capfd: Output) -> None:
    path = model_with_an_island(tmp_path / "m.onnx")
    assert run(["doctor", "--model", str(path), "--dim", "width=4", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert found["fully_integral"] is False
    assert [entry["op"] for entry in found["operators"]] == ["nn.conv2d", "trunc_mod", "nn.conv2d"]
    assert found["operators"][1]["onnx_nodes"] == ["island"]
    assert found["inputs"] == [
        {
            "name": "x",
            "dtype": "float32",
            "shape": [1, 2, 4, 4],
            "declared": ["N", 2, 4, "width"],
        }
    ]
    assert len(found["hints"]) == 2


def test_doctor_follows_the_given_configuration(capfd: Output) -> None:
    assert run(["doctor", "--model", "digits", "--qconfig", "skip_dense_layer=True"]) == 1
    assert "set skip_dense_layer=False" in capfd.readouterr().out


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = iter([{"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 4, 1)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def two_convolutions(path: Path) -> Path:
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "a"], ["t"], name="first"),
            helper.make_node("Conv", ["t", "b"], ["y"], name="second"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 4, 1])],
        [
            numpy_helper.from_array(rng.normal(size=(2, 2, 1, 1)).astype(np.float32), name)
            for name in "ab"
        ],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_a_beginning_that_is_named_leaves_the_head_to_be_found(
    tmp_path: Path, capfd: Output
) -> None:
    model = onnx.load(two_convolutions(tmp_path / "m.onnx"))
    model.graph.node.insert(0, helper.make_node("Tanh", ["image"], ["x"], name="prepared"))
    model.graph.node.append(helper.make_node("NonZero", ["y"], ["z"], name="head"))
    model.graph.input[0].name = "image"
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.INT64, None))
    onnx.save(model, tmp_path / "m.onnx")
    assert run(["doctor", str(tmp_path / "m.onnx"), "--from", "first", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [one["onnx_nodes"] for one in found["operators"]] == [["first"], ["second"]]


def test_a_quantized_file_that_onnxruntime_saturates_is_warned_of(
    tmp_path: Path, capfd: Output
) -> None:
    path = two_convolutions(tmp_path / "m.onnx")
    assert run(["doctor", "--model", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["warnings"] == []
    quantized = str(tmp_path / "q.onnx")
    quantize_static(path, quantized, Samples(), quant_format=QuantFormat.QDQ)
    assert run(["doctor", "--model", quantized]) == 0
    shown = capfd.readouterr().out
    assert "pairs saturate without VNNI" in shown
    assert "session.x64quantprecision=1" in shown
    assert run(["doctor", "--model", quantized, "--json"]) == 0
    _, differs, _ = json.loads(capfd.readouterr().out)["judgement"]
    assert "first" in differs


@pytest.mark.parametrize("form", ["dynamic", "operators"])
def test_other_forms_of_a_quantized_file_are_warned_of_as_well(
    tmp_path: Path, capfd: Output, form: str
) -> None:
    quantized = str(tmp_path / "q.onnx")
    if form == "dynamic":
        onnx.save(dense_model(), tmp_path / "m.onnx")
        quantize_dynamic(tmp_path / "m.onnx", quantized)
    else:
        path = two_convolutions(tmp_path / "m.onnx")
        quantize_static(
            path,
            quantized,
            Samples(),
            quant_format=QuantFormat.QOperator,
            activation_type=QuantType.QUInt8,
        )
    assert run(["doctor", "--model", quantized]) == (2 if form == "dynamic" else 0)
    shown = capfd.readouterr()
    said = shown.out + shown.err
    assert ("multiplies integers" in said) == (form == "dynamic")
    assert "pairs saturate without VNNI" in said
    assert "session.x64quantprecision=1" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "none.onnx"], "there is no model"),
        (["--model", "digits", "--qconfig", "weight_scal=max"], "did you mean 'weight_scale'"),
        (["--model", "digits", "--dim", "N"], "NAME=N"),
        ([], "--model"),
    ],
)
def test_unusable_input_exits_with_code_2(words: list[str], says: str, capfd: Output) -> None:
    assert run(["doctor", *words]) == 2
    assert says in capfd.readouterr().err


def test_a_dimension_that_is_not_given_names_its_option(tmp_path: Path, capfd: Output) -> None:
    path = model_with_an_island(tmp_path / "m.onnx")
    assert run(["doctor", "--model", str(path)]) == 2
    assert "--dim width=" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "option"), [("N", "N"), ("", "x:0")])
def test_the_option_of_an_open_dimension_is_told(
    name: str, option: str, tmp_path: Path, capfd: Output
) -> None:
    path = model_with_an_island(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    onnx.save(model, path)
    words = ["doctor", "--model", str(path), "--dim", "width=4"]
    run(words)
    assert f"was taken as 1; --dim {option}=… changes it" in capfd.readouterr().out
    run([*words, "--dim", f"{option}=2"])
    assert "x: float32[2, 2, 4, 4]" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("symmetric", "activation_scheme=unsigned uses"),
        ("unsigned", "the others symmetric"),
        ("asymmetric", "may get a zero point"),
    ],
)
def test_signs_of_activations_are_told_before_there_is_data(
    scheme: str, says: str, capfd: Output
) -> None:
    words = ["doctor", "--model", "digits", "--qconfig", f"activation_scheme={scheme}"]
    assert run(words) == 0
    shown = capfd.readouterr().out
    assert f"activation_scheme={scheme}: " in shown
    assert "are never negative" in shown
    assert says in shown


def test_divergence_at_few_bits_is_warned_of(capfd: Output) -> None:
    words = ["doctor", "--model", "digits", "--json", "--qconfig"]
    assert run([*words, "calibrate_mode=kl_divergence,nbit_input=6"]) == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert any("nbit_input=6 may keep hardly anything" in note for note in notes)
    assert run([*words, "calibrate_mode=mse,nbit_input=6"]) == 0
    assert len(json.loads(capfd.readouterr().out)["notes"]) == 1
