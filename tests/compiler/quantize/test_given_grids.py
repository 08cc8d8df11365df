"""Weights that came as integers of few bits keep them, in a model that is float otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler import evaluate
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Constant
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import prerequisite_optimize
from compiler.quantize.scales.weight_grid import range_on_few_levels, range_on_grid
from tests.each import each

ROWS, COLUMNS = 12, 64
Ints = np.ndarray[Any, np.dtype[np.int64]]

KINDS = {
    "int4": (TensorProto.INT4, 4, -8, None, 21),
    "uint4": (TensorProto.UINT4, 4, 0, 5, 21),
    "int8": (TensorProto.INT8, 8, -128, None, 21),
    "uint8": (TensorProto.UINT8, 8, 0, 100, 21),
    "int2": (TensorProto.INT2, 2, -2, None, 25),
    "uint2": (TensorProto.UINT2, 2, 0, 1, 25),
}


def packed(values: Ints, nbit: int) -> bytes:
    places = values.reshape(-1, 8 // nbit) & ((1 << nbit) - 1)
    return bytes((places << np.arange(0, 8, nbit)).sum(axis=1).astype(np.uint8))


def model_of(
    node: list[onnx.NodeProto], held: list[onnx.TensorProto], opset: int
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, COLUMNS))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, ROWS))
    graph = helper.make_graph(node, "g", [x], [y], held)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=13 if opset == 25 else 10)


def dequantized(kind: str, rng: np.random.Generator) -> tuple[onnx.ModelProto, Ints]:
    """A dense layer whose weight is read by DequantizeLinear, and its integers around zero."""
    dtype, nbit, low, zero, opset = KINDS[kind]
    levels = rng.integers(low, low + 2**nbit, (ROWS, COLUMNS))
    held = [
        helper.make_tensor("w", dtype, (ROWS, COLUMNS), packed(levels, nbit), raw=True),
        numpy_helper.from_array(rng.uniform(0.01, 0.1, ROWS).astype("float32"), "s"),
        numpy_helper.from_array(rng.normal(0, 1, ROWS).astype("float32"), "b"),
    ]
    inputs = ["w", "s"]
    if zero is not None:
        points = packed(np.full(ROWS, zero), nbit)
        held.append(helper.make_tensor("z", dtype, (ROWS,), points, raw=True))
        inputs.append("z")
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["wide"], axis=0),
        helper.make_node("Gemm", ["x", "wide", "b"], ["y"], transB=1),
    ]
    return model_of(nodes, held, opset), levels - (zero or 0)


def matmul_nbits(
    rng: np.random.Generator, block: int, nbit: int = 4, zeros: bool = False
) -> tuple[onnx.ModelProto, Ints]:
    blocks = COLUMNS // block
    levels = rng.integers(0, 2**nbit, (ROWS, COLUMNS))
    stored = np.frombuffer(packed(levels, nbit), np.uint8).reshape(ROWS, blocks, -1)
    points = np.full((ROWS, blocks), 2 ** (nbit - 1))
    held = [
        numpy_helper.from_array(stored, "w"),
        numpy_helper.from_array(rng.uniform(0.01, 0.1, ROWS * blocks).astype("float32"), "s"),
    ]
    inputs = ["x", "w", "s"]
    if zeros:
        points = rng.integers(0, 2**nbit, (ROWS, blocks))
        inside = np.pad(points, ((0, 0), (0, -blocks % (8 // nbit))))
        rows = np.frombuffer(packed(inside, nbit), np.uint8)
        held.append(numpy_helper.from_array(rows, "z"))
        inputs.append("z")
    sizes = {"N": ROWS, "K": COLUMNS, "block_size": block, "bits": nbit}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes)
    return model_of([node], held, 21), levels - points.repeat(block, axis=1)


def weight_of(module: IRModule) -> np.ndarray[Any, Any]:
    constants = (n.data for n in nodes_of(module["quantized_main"]) if isinstance(n, Constant))
    (weight,) = (data for data in constants if data.shape == (ROWS, COLUMNS))
    return weight


def samples(rng: np.random.Generator, count: int = 16) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, (1, COLUMNS)).astype("float32")} for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"smooth_alpha": 0.5}, {"weight_scale": "mse"}], ids=str)
def test_integers_of_few_bits_are_those_of_the_model(kind: str, changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    model, levels = dequantized(kind, rng)
    onnx.checker.check_model(model, full_check=True)
    config = QConfig.recommended(weight_rounding="sequential", **changes).to_dict()
    found = weight_of(qsearch.quantize(model, samples(rng), config).module)
    np.testing.assert_array_equal(found, levels)


@pytest.mark.parametrize("nbit", [2, 4])
def test_the_weight_of_matmulnbits_keeps_its_integers(nbit: int) -> None:
    rng = np.random.default_rng(2)
    model, levels = matmul_nbits(rng, COLUMNS, nbit)
    found = weight_of(qsearch.quantize(model, samples(rng)).module)
    np.testing.assert_array_equal(found, levels)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmulnbits_means_what_onnxruntime_computes(block: int, zeros: bool) -> None:
    rng = np.random.default_rng(3)
    model, _ = matmul_nbits(rng, block, zeros=zeros)
    mod, params = load(model.SerializeToString())
    mod = prerequisite_optimize(mod, params, 3)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch in each(samples(rng, 4)):
        # onnxruntime adds the products in another order.
        wanted = session.run(None, batch)[0]
        np.testing.assert_allclose(evaluate(mod, batch)[0], wanted, rtol=1e-4, atol=1e-5)


def test_activations_of_two_bits_keep_to_their_four_levels() -> None:
    rng = np.random.default_rng(4)
    held = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        helper.make_tensor("z", TensorProto.INT2, (), bytes(1), raw=True),
        numpy_helper.from_array(rng.normal(0, 1, (COLUMNS, ROWS)).astype("float32"), "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    mod, params = load(model_of(nodes, held, 25).SerializeToString())
    x = rng.normal(0, 1, (1, COLUMNS)).astype("float32")
    levels = np.clip(np.rint(x / np.float32(0.5)), -2, 1) * np.float32(0.5)
    found = evaluate(prerequisite_optimize(mod, params, 3), {"x": x})[0]
    np.testing.assert_allclose(found, levels @ numpy_helper.to_array(held[2]), rtol=1e-5)


def test_a_grid_whose_range_leaves_float32_is_none() -> None:
    """As of -3.4e38, with which masks fill what is not there."""
    filled = np.full((2, 8), np.finfo(np.float32).min)
    assert range_on_few_levels(filled, 8, None) is None
    assert range_on_grid(filled, 8, None) is None
    assert range_on_grid(filled, 8, 0) is None
    assert range_on_few_levels(np.full((2, 8), np.float32(0.5)), 8, None) is not None
