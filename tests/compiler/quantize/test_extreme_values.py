"""Networks whose values are near the ends of float32."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.errors import CompilerError


def network(first: float, factor: float, function: str = "Relu") -> onnx.ModelProto:
    """y = f(x W · factor) V; W is ``first`` times a normal draw."""
    rng = np.random.default_rng(0)
    held = {
        "w": rng.standard_normal((16, 8)) * first,
        "v": rng.standard_normal((8, 8)),
        "k": np.float64(factor),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "k"], ["g"]),
        helper.make_node(function, ["g"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ports = (("x", [1, 16]), ("y", [1, 8]))
    x, y = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in ports)
    constants = [numpy_helper.from_array(np.float32(array), name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", x, y, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("first", "factor", "scale", "function"),
    [
        (1, 1e36, 1, "Relu"),
        (3e37, 1, 1, "Relu"),
        (1, 1e-38, 1e37, "Relu"),
        (np.inf, 1, 1, "Relu"),
        (20, 1, 1, "Exp"),
        (1, 1, 1e37, "Relu"),
    ],
)
def test_no_warning_of_numpy_is_shown_for_values_near_the_ends_of_float32(
    first: float, factor: float, scale: float, function: str
) -> None:
    data = np.random.default_rng(1).standard_normal((16, 1, 16)).astype("f") * np.float32(scale)
    model = network(first, factor, function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with contextlib.suppress(CompilerError):  # what is not finite is refused in words
            qsearch.quantize(model, {"x": data[:, 0]})


@pytest.mark.parametrize(
    "end", ["a = Mul (m, k)  y = Add (a, k)", "a = Mul (m, k)  y = Sigmoid (a)"]
)
def test_no_warning_of_numpy_is_shown_for_a_huge_result(end: str) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> m (float[1, 16] x) => (float[1, 8] y) '
    model = onnx.parser.parse_model(f"{text} <float k = {{1e36}}> {{ m = MatMul (x, w)  {end} }}")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 8)).astype("f")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    data = rng.standard_normal((32, 16)).astype("f")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        module = qsearch.quantize(model, {"x": data})
    wanted = data.astype(np.float64) @ weight * 1e36
    wanted = wanted + 1e36 if "Add" in end else wanted > 0
    found = np.concatenate([module.run({"x": row[None]})[0] for row in data])
    assert (np.abs(found - wanted) < 0.02 * wanted.max()).mean() > 0.95


@pytest.mark.parametrize("bias", [0, 1e20, 1e30])
def test_values_of_1e37_are_as_near_to_float_as_others(bias: float) -> None:
    data = {"x": np.random.default_rng(1).standard_normal((16, 16)).astype("f")}
    model = network(1, bias or 1e36)
    if bias:  # a sum, whose constants may be masks
        model.graph.initializer.append(numpy_helper.from_array(np.full(8, bias, "f"), "b"))
        model.graph.node.insert(2, helper.make_node("Add", ["g", "b"], ["s"]))
        model.graph.node[3].input[0] = "s"
    module = qsearch.quantize(model, data)
    float_model = onnx.reference.ReferenceEvaluator(model)
    rows = [{"x": row[None]} for row in data["x"]]
    wanted = np.concatenate([float_model.run(None, row)[0] for row in rows]).astype(np.float64)
    found = np.concatenate([module.run(row)[0] for row in rows])
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()


def test_argmax_reads_channels_whose_scales_are_further_apart_than_float32_can_say() -> None:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((16, 4)) * [1e30, 1e-13, 1e-13, 1e-13]).astype("f")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ArgMax", ["h"], ["y"], axis=1, keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = rng.standard_normal((16, 16)).astype("f")
    module = qsearch.quantize(model, {"x": rows})
    first = [module.run({"x": row[None]})[0][0] == 0 for row in rows]
    assert first == (rows @ weight[:, 0] > 0).tolist()
