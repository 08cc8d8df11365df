"""Models that bring QuantizeLinear and DequantizeLinear along."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import compiler
import qsearch
from compiler import transform
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.proof.derive import derive
from compiler.quantize import bind_params, realize

SIMULATED = "relay.op.annotation.simulated_quantize"
node = helper.make_node


def pair(data: str, scale: str, zero: str, result: str) -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [data, scale, zero], [f"{result}_q"]),
        node("DequantizeLinear", [f"{result}_q", scale, zero], [result]),
    ]


def model(zero_point: Any, bias: int = 2000) -> onnx.ModelProto:
    """x → conv → relu → y; int8 weight by channel, int32 bias, activations around a zero point."""
    rng = np.random.default_rng(0)
    weight_scale = rng.uniform(0.001, 0.01, 8).astype(np.float32)
    arrays = {
        "w": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "ws": weight_scale,
        "wz": np.zeros(8, np.int8),
        "b": rng.integers(-bias, bias, 8).astype(np.int32),
        "bs": weight_scale / 64,
        "bz": np.zeros(8, np.int32),
        "xs": np.float32(1 / 64),
        "z": zero_point,
        "ys": np.float32(1 / 8),
    }
    nodes = [
        *pair("x", "xs", "z", "x_d"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["w_d"], axis=0),
        node("DequantizeLinear", ["b", "bs", "bz"], ["b_d"], axis=0),
        node("Conv", ["x_d", "w_d", "b_d"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        *pair("r", "ys", "z", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 8, 8, 8])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def on_halves() -> NDArray[np.float32]:
    """Inputs a quarter of a quantum apart, so that every fourth lies between two integers."""
    values = np.random.default_rng(1).integers(-600, 600, (2, 3, 8, 8))
    return (values / 256).astype(np.float32)


def on_onnxruntime(proto: onnx.ModelProto, x: NDArray[np.float32]) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": x})[0]


def imported(proto: onnx.ModelProto) -> IRModule:
    mod, params = load(proto.SerializeToString())
    return bind_params(mod, params)


def calls(mod: IRModule, name: str) -> list[Call]:
    return [
        n
        for n in post_order(mod["main"])
        if isinstance(n, Call) and isinstance(n.op, Op) and n.op.name == name
    ]


@pytest.mark.parametrize("zero_point", [np.int8(0), np.int8(3), np.uint8(0), np.uint8(128)])
def test_pairs_and_weights_become_simulated_quantize(zero_point: Any) -> None:
    proto = model(zero_point)
    mod = imported(proto)
    assert [c.attrs.kind for c in calls(mod, SIMULATED)] == [1, 2, 2, 1]  # type: ignore[union-attr]
    assert not calls(mod, "round_even")
    assert len(mod["main"].params) == 1
    x = on_halves()
    (got,) = compiler.evaluate(mod, {"x": x})
    # Everything but the sums of the convolution is exact, and those are multiples of a quantum.
    np.testing.assert_array_equal(got, on_onnxruntime(proto, x))


def test_a_bias_of_thirty_one_bits_has_the_values_of_onnx() -> None:
    proto = model(np.int8(0), bias=2**31 - 1)
    x = on_halves()
    (got,) = compiler.evaluate(imported(proto), {"x": x})
    np.testing.assert_array_equal(got, on_onnxruntime(proto, x))


def test_realized_it_computes_on_int8_with_the_scales_of_the_model() -> None:
    mod = imported(model(np.int8(0)))
    with transform.PassContext(opt_level=3, verify=True):
        new = transform.Sequential([realize(), "FoldConstant"])(mod)
    (conv,) = calls(new, "nn.conv2d")
    assert [str(a.tensor_type.dtype) for a in conv.args] == ["int8", "int8"]
    weight = numpy_helper.to_array(model(np.int8(0)).graph.initializer[0])
    np.testing.assert_array_equal(conv.args[1].data, weight)  # type: ignore[attr-defined]
    x = on_halves()
    (got,), (want,) = compiler.evaluate(new, {"x": x}), compiler.evaluate(mod, {"x": x})
    # Scales are multiplied in another order, so a sum on a half may go to the other side.
    assert np.abs(got - want).max() <= 1 / 8
    assert np.mean(got != want) < 0.01


def test_a_quantized_import_survives_text_and_export() -> None:
    mod = imported(model(np.int8(0)))
    assert compiler.structural_equal(compiler.parse(compiler.text(mod)), mod)
    x = on_halves()
    again = on_onnxruntime(to_onnx(mod), x)
    np.testing.assert_array_equal(again, compiler.evaluate(mod, {"x": x})[0])


def test_a_long_product_with_wide_weights_is_proved_in_every_form() -> None:
    """The worst sums of 1536 products leave float32, those of these weights do not."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": np.clip(rng.normal(0, 30, (1536, 8)), -127, 127).astype(np.int8),
        "s": np.float32(1 / 64),
        "z": np.int8(0),
    }
    nodes = [
        *pair("x", "s", "z", "x_d"),
        node("DequantizeLinear", ["w", "s", "z"], ["w_d"]),
        node("MatMul", ["x_d", "w_d"], ["h"]),
        *pair("h", "s", "z", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 1536])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4, 8])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = qsearch.quantize(proto, {"x": rng.normal(size=(4, 4, 1536)).astype(np.float32)})
    assert derive(module.module, module.samples).findings == ()
