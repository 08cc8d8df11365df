"""The model's side of a module: names and dtypes that its callers know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.runtime.interface import KEY, Interface


def half_model() -> onnx.ModelProto:
    """Relu(x W) in float16, any number of samples."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype("float16")
    nodes = [
        helper.make_node("MatMul", ["pixels", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT16, ["samples", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT16, ["samples", 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_float16_interface_stays_float16(tmp_path: Path) -> None:
    onnx.save(half_model(), tmp_path / "half.onnx")
    calib = np.random.default_rng(1).standard_normal((16, 4)).astype("float32")
    made = qsearch.quantize(tmp_path / "half.onnx", {"pixels": calib})
    made.save(tmp_path / "half.qmod")
    module = qsearch.load(tmp_path / "half.qmod")
    assert module.interface == declared_interface(tmp_path / "half.onnx")
    (half,) = module.run({"pixels": calib[:5].astype("float16")})
    (single,) = module.run({"pixels": calib[:5].astype("float16").astype("float32")})
    assert (half.dtype, single.dtype) == ("float16", "float32")
    np.testing.assert_array_equal(half, single.astype("float16"))


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"inputs": 3, "outputs": []},
        {"inputs": [{"name": "y", "dtype": "float32", "dims": []}], "outputs": []},
        {"inputs": [{"name": "x", "dtype": "no", "dims": []}], "outputs": []},
        {"inputs": [{"name": "x", "dtype": ",9", "dims": []}], "outputs": []},
    ],
)
def test_what_does_not_fit_the_module_is_not_believed(found: object) -> None:
    assert Interface.of({KEY: found}, ["x"], 0) is None
