"""Element types and operators that numpy or onnxruntime does not have: every command says so."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.targets.ort.session import OrtExecutor
from qsearch.cli.main import run

node = helper.make_node
WEIGHT = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def save(
    path: Path, nodes: list[onnx.NodeProto], taken: int, given: int, *held: onnx.TensorProto
) -> Path:
    """A model of ``x`` (1, 16) and ``y``, of these element types."""
    x = helper.make_tensor_value_info("x", taken, [1, 16])
    y = helper.make_tensor_value_info("y", given, None)
    graph = helper.make_graph(nodes, "g", [x], [y], held or [numpy_helper.from_array(WEIGHT, "w")])
    versions = {"": 19, "ai.onnx.ml": 2, "my.domain": 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def product(data: str, result: str) -> onnx.NodeProto:
    return node("MatMul", [data, "w"], [result])


def cast(data: str, result: str, to: int) -> onnx.NodeProto:
    return node("Cast", [data], [result], to=to)


def encoder(data: str, result: str, **tables: Any) -> onnx.NodeProto:
    return node("LabelEncoder", [data], [result], domain="ai.onnx.ml", **tables)


FLOAT, BFLOAT16, STRING = TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.STRING
CODES: dict[str, Any] = {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}
NAMES: dict[str, Any] = {"keys_int64s": [0, 1], "values_strings": ["a", "b"]}
REFUSED = {
    "an operator of their own behind": (
        [product("x", "h"), node("MyOp", ["h"], ["y"], domain="my.domain")],
        (FLOAT, FLOAT),
        "has no operator my.domain::MyOp",
    ),
    "an operator of their own in front": (
        [node("MyOp", ["x"], ["h"], domain="my.domain"), product("h", "y")],
        (FLOAT, FLOAT),
        "has no operator my.domain::MyOp",
    ),
    "texts as input": ([encoder("x", "h", **CODES), product("h", "y")], (STRING, FLOAT), "'x'"),
    "texts as output": (
        [product("x", "h"), node("ArgMax", ["h"], ["a"], axis=1), encoder("a", "y", **NAMES)],
        (FLOAT, STRING),
        "encode texts outside",
    ),
    "bfloat16 as input": ([cast("x", "h", FLOAT), product("h", "y")], (BFLOAT16, FLOAT), "'x'"),
    "bfloat16 as output": ([product("x", "h"), cast("h", "y", BFLOAT16)], (FLOAT, BFLOAT16), "'y'"),
    "bfloat16 inside": (
        [
            cast("x", "b", BFLOAT16),
            cast("w", "c", BFLOAT16),
            node("MatMul", ["b", "c"], ["h"]),
            cast("h", "y", FLOAT),
        ],
        (FLOAT, FLOAT),
        "BFLOAT16 is not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_doctor_and_compile_refuse_what_numpy_or_onnxruntime_does_not_have(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, (taken, given), told = REFUSED[name]
    model = save(tmp_path / "m.onnx", nodes, taken, given)
    for command in ("doctor", "compile"):
        assert run([command, str(model)]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "fix: " in error
        assert "ONNXRuntimeError" not in error


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("command", ["doctor", "compile"])
def test_a_weight_that_is_not_finite_is_named(
    command: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = WEIGHT.copy()
    weight[3, 2] = value
    held = numpy_helper.from_array(weight, "w")
    model = save(tmp_path / "m.onnx", [product("x", "y")], FLOAT, FLOAT, held)
    assert run([command, str(model)]) == 2
    assert f"initializer 'w' holds {'NaN' if np.isnan(value) else 'infinity'}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_weights_of_narrow_floats_behind_a_cast_are_widened(kind: str, tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.DataType.Value(kind), [16, 8], WEIGHT.ravel())
    nodes = [cast("w", "f", FLOAT), node("MatMul", ["x", "f"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, FLOAT, FLOAT, weight)
    data = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    module, session = qsearch.quantize(model, {"x": data}), OrtExecutor(model.read_bytes())
    wanted = np.concatenate([session.run({"x": row[None]})[0] for row in data])
    found = np.concatenate([module.run({"x": row[None]})[0] for row in data])
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()


def test_a_module_says_which_libraries_read_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distribution of onnxruntime may have another name, such as onnxruntime-gpu."""
    missing = mock.Mock(side_effect=metadata.PackageNotFoundError)
    monkeypatch.setattr(metadata, "version", missing)
    model = save(tmp_path / "m.onnx", [product("x", "y")], FLOAT, FLOAT)
    libraries = qsearch.quantize(model).provenance["libraries"]
    assert libraries["numpy"] == np.__version__
    assert libraries["onnx"] == onnx.__version__
    assert libraries["onnxruntime"] == onnxruntime.__version__


@pytest.mark.parametrize(("version", "named"), [("1.2.3", True), ("", False), ("\x1b", False)])
def test_verify_and_diff_name_libraries_of_other_versions(
    version: str,
    named: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = save(tmp_path / "m.onnx", [product("x", "y")], FLOAT, FLOAT)
    module = qsearch.quantize(model)
    libraries = {**module.provenance["libraries"], "onnx": version or onnx.__version__}
    provenance = {**module.provenance, "libraries": libraries}
    replace(module, provenance=provenance).save(tmp_path / "m.qmod")
    told = f"made with onnx {version}, here {onnx.__version__}"
    assert run(["verify", str(tmp_path / "m.qmod")]) == 0
    assert (told in capsys.readouterr().out) == named
    run(["diff", str(model), str(tmp_path / "m.qmod")])
    assert (told in caplog.text) == named
    assert "\x1b" not in caplog.text
