"""The kernel that onnxruntime takes is read from its optimized graph, and decides the cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.judgement.exact import evaluate
from compiler.judgement.kernels import read_kernels
from compiler.judgement.layers import read_network
from compiler.judgement.machines import Row, machines
from compiler.judgement.overflow import PROVED, overflow
from compiler.targets.engine.library import adds_pairs
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.judgement.small_files import node

LARGE = 127


def points(*rest: onnx.NodeProto, bias: bool = False) -> list[onnx.NodeProto]:
    """x → Q → DQ beside the DQ of the weight, with the nodes behind them."""
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw"], ["v"]),
    ]
    if bias:
        nodes.append(node("DequantizeLinear", ["b", "sb"], ["c"]))
    end = rest[-1].output[0]
    return [
        *nodes,
        *rest,
        node("QuantizeLinear", [end, "sy", "zy"], ["p"]),
        node("DequantizeLinear", ["p", "sy", "zy"], ["y"]),
    ]


def saved(
    nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Any], opset: int = 21
) -> onnx.ModelProto:
    tensors = [
        value
        if isinstance(value, onnx.TensorProto)
        else numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def quantized(form: str) -> onnx.ModelProto:
    """A product whose weights saturate wherever integers are added up."""
    rng = np.random.default_rng(3)
    signed = "int8" in form
    dtype = np.int8 if signed else np.uint8
    constants: dict[str, Any] = {
        "sx": np.float32(0.02),
        "zx": dtype(0 if signed else 128),
        "sw": np.float32(0.01),
        "sy": np.float32(0.2),
        "zy": dtype(0 if signed else 128),
        "b": rng.integers(-2000, 2000, 6).astype(np.int32),
        "sb": np.float32(0.0003 if "own" in form else 0.0002),
    }
    if form.endswith("Conv"):
        constants["w"] = rng.integers(100, LARGE + 1, (6, 8, 3, 3)).astype(np.int8)
        shape = [1, 8, 5, 5]
        weight = "v"
        layers = []
        if "transposed" in form:
            constants["w"] = np.moveaxis(constants["w"], (0, 1), (3, 2)).copy()
            layers.append(node("Transpose", ["v"], ["t"], perm=[3, 2, 0, 1]))
            weight = "t"
        bias = ["c"] if "bias" in form else []
        pads = [1, 1, 1, 1]
        layers.append(node("Conv", ["d", weight, *bias], ["f"], name="layer", pads=pads))
    else:
        constants["w"] = rng.integers(100, LARGE + 1, (6, 8)).astype(np.int8)
        shape = [4, 8]
        layers = [node("Transpose", ["v"], ["t"], perm=[1, 0])]
        layers.append(node("MatMul", ["d", "t"], ["f"], name="layer"))
    if "relu" in form:
        layers.append(node("Relu", ["f"], ["r"]))
    return saved(points(*layers, bias="bias" in form), shape, constants)


def blocks(form: str) -> onnx.ModelProto:
    """A product of floats by a weight of 8 or 4 bits."""
    rng = np.random.default_rng(5)
    if form.startswith("MatMulNBits"):
        level = 4 if form.endswith("level 4") else 0
        attrs: dict[str, Any] = {
            "K": 32,
            "N": 10,
            "bits": 4,
            "block_size": 32,
            "accuracy_level": level,
        }
        layer = node(
            "MatMulNBits", ["x", "w", "s"], ["y"], name="layer", domain="com.microsoft", **attrs
        )
        constants: dict[str, Any] = {
            "w": rng.integers(0, 256, (10, 1, 16)).astype(np.uint8),
            "s": rng.uniform(0.005, 0.02, 10).astype(np.float32),
        }
        return saved([layer], [4, 32], constants)
    levels = rng.integers(-8, 8, (32, 10))
    constants = {
        "w": helper.make_tensor("w", TensorProto.INT4, (32, 10), levels.reshape(-1).tolist()),
        "s": rng.uniform(0.005, 0.02, (2, 10)).astype(np.float32),
    }
    options: dict[str, Any] = {"axis": 0, "block_size": 16}
    if form == "int8":
        constants["w"] = (levels * 15).astype(np.int8)
        constants["s"] = constants["s"][0]
        options = {"axis": 1}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["v"], **options),
        node("MatMul", ["x", "v"], ["y"], name="layer"),
    ]
    return saved(nodes, [4, 32], constants)


def judged(model: onnx.ModelProto) -> tuple[Row, int]:
    """Return the row of the layer, and how many outputs of onnxruntime are not the exact ones."""
    network = read_network(model.SerializeToString())
    sizes = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    data = np.random.default_rng(0).uniform(1, 2.5, sizes).astype(np.float32)
    run = evaluate(network, {"x": data})
    rows = {row.layer: row for row in machines(network, [run], read_kernels(network.model))}
    (found,) = OrtExecutor(model).run([data])
    exact = run.values["y"]
    return rows["layer"], int((np.abs(found - exact) > 1e-4 * np.abs(exact).max()).sum())


@pytest.mark.parametrize("form", ["transposed MatMul", "transposed Conv", "int8 Conv", "bias Conv"])
def test_a_product_of_integers_saturates_where_onnxruntime_does(form: str) -> None:
    row, differing = judged(quantized(form))
    assert row.rules[0] == "sums"
    assert row.cells["x86 AVX2"] == "can saturate"
    assert row.samples == 1
    assert bool(differing) == adds_pairs()


@pytest.mark.parametrize("form", ["own bias Conv", "int8 relu Conv", "relu bias Conv"])
def test_a_product_that_onnxruntime_leaves_in_float_does_not_saturate(form: str) -> None:
    row, differing = judged(quantized(form))
    assert row.rules == ["float sums"]
    assert row.pair is None
    assert not differing


@pytest.mark.parametrize("form", ["int8", "int4 in blocks", "MatMulNBits of level 4"])
def test_a_product_by_a_weight_of_few_bits_names_the_rounding_of_its_data(form: str) -> None:
    row, differing = judged(blocks(form))
    assert row.rules == ["blocks"]
    assert differing


def test_a_matmulnbits_with_float_data_is_evaluated_exactly() -> None:
    row, differing = judged(blocks("MatMulNBits"))
    assert row.rules == ["float sums"]
    assert not differing


def test_a_transposed_weight_has_an_accumulator() -> None:
    network = read_network(quantized("transposed MatMul").SerializeToString())
    claims = [claim for claim in overflow(network, {}) if claim.what == "accumulator"]
    assert [(claim.layer, claim.verdict) for claim in claims] == [("layer", PROVED)]
    assert claims[0].high >= 100 * 8 * 127
