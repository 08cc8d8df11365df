"""Comparisons of quantized values: what holds of the real values holds of the integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from tests.each import each

OPS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
BOUNDS = np.float32([3, -3, 0, 0.5, -0.5, 126.5, 127, -127, -127.5, 200, -200, np.inf, -np.inf])


def test_bounds_on_between_and_beyond_the_steps_of_a_scale(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"])]
    outputs = []
    for op in OPS:
        for number, sides in enumerate((["x", "t"], ["t", "x"])):
            name = f"{op}{number}"
            nodes.append(helper.make_node(op, sides, [f"m{name}"]))
            nodes.append(helper.make_node("Where", [f"m{name}", "x", "n"], [name]))
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, BOUNDS.size]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, BOUNDS.size])
    constants = [numpy_helper.from_array(BOUNDS, "t")]
    graph = helper.make_graph(nodes, "compared", [x], outputs, constants)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    steps = np.arange(-127, 128, dtype=np.float32)
    samples = np.repeat(steps[:, None], BOUNDS.size, 1)
    np.savez(tmp_path / "calib.npz", x=samples)
    eight = "auto,dtype_input=int8,nbit_input=8"
    module = qsearch.quantize(tmp_path / "m.onnx", str(tmp_path / "calib.npz"), eight)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sample in samples[::7, None]:
        given = {"x": sample}
        for got, want in zip(module.run(given), session.run(None, given), strict=True):
            np.testing.assert_array_equal(got, want)
    assert "quantized_main" in module.functions


@pytest.mark.parametrize("config", ["auto", "auto,nbit_input=8,dtype_input=int8"])
def test_an_input_whose_integers_have_a_zero_point_is_compared_as_it_is(config: str) -> None:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    output = helper.make_tensor_value_info("less", TensorProto.BOOL, [1, 8])
    nodes = [helper.make_node("Less", ["x", "y"], ["less"])]
    graph = helper.make_graph(nodes, "compared", inputs, [output])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    rng = np.random.default_rng(0)
    samples = [
        {"x": rng.normal(0, 1, (1, 8)).astype("f4"), "y": rng.uniform(-3, 0.3, (1, 8)).astype("f4")}
        for _ in range(20)
    ]
    module = qsearch.quantize(model, samples, config)
    apart = [np.abs(sample["x"] - sample["y"]) > 0.1 for sample in samples]
    for sample, far in each(zip(samples, apart, strict=True)):
        (found,) = module.run(sample)
        np.testing.assert_array_equal(found[far], (sample["x"] < sample["y"])[far])
