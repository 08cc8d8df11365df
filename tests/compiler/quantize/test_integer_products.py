"""Models that compute on integers already are refused by name before anything is annotated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import quantize_dynamic

from compiler import evaluate
from compiler.errors import QuantizeError
from compiler.frontend.from_onnx.load import load
from compiler.quantize import QConfig, bind_params, diagnose, mark, prerequisite_optimize, quantize


def dense_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w0", "w1")}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w1"], ["y"], name="second"),
        ],
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """What quantize_dynamic makes of two dense layers."""
    onnx.save(dense_model(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    return tmp_path / "dynamic.onnx"


def test_a_dynamically_quantized_model_is_refused_with_its_layer_and_what_to_give(
    dynamic: Path,
) -> None:
    mod, params = load(dynamic)
    with QConfig.recommended(), pytest.raises(QuantizeError) as error:
        quantize(mod, params, dataset=[{"x": np.ones((1, 8), np.float32)}])
    message = str(error.value)
    assert "the model is quantized already" in message
    assert "2 layers do so" in message
    assert "first_quant" in message
    assert "give the float model" in message
    assert "in pass" not in message


def test_searches_and_the_diagnosis_refuse_it_alike(dynamic: Path) -> None:
    mod = prerequisite_optimize(*load(dynamic), 3)
    for ask in (mark, diagnose):
        with pytest.raises(QuantizeError, match="quantized already"):
            ask(mod, QConfig.recommended())


def test_a_dynamically_quantized_model_is_imported_and_evaluated(dynamic: Path) -> None:
    """onnxruntime is no oracle here: its kernels for uint8 by int8 saturate without VNNI."""
    x = np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)
    mod = bind_params(*load(dynamic))
    (wanted,) = ReferenceEvaluator(onnx.load(dynamic)).run(None, {"x": x})
    np.testing.assert_allclose(evaluate(mod, {"x": x})[0], wanted, rtol=1e-5, atol=1e-5)
