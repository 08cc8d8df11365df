"""Layers that saturate, and zeros of a Pad that are lost, are named whatever form they have.

What saturates was found by running onnxruntime 1.31 on an emulated Haswell, operator by operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from compiler.judgement.layers import read_network
from compiler.judgement.machines import RULES, machines, padding_notes

node = helper.make_node


def saturating(source: Any) -> list[str]:
    """The layers whose pairs saturate."""
    rows = machines(read_network(source), ())
    assert all(row.pair["saturated"] != row.pair["exact"] for row in rows if row.pair is not None)
    return [row.layer for row in rows if "pairs" in row.rules]


def packed(
    nodes: list[onnx.NodeProto], inputs: dict[str, DTypeLike], **arrays: NDArray[Any]
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None
            )
            for name, dtype in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def weights(dtype: DTypeLike, *shape: int, largest: int = 127) -> NDArray[Any]:
    values = np.full(shape, -largest)
    return (values + (128 if np.dtype(dtype) == np.uint8 else 0)).astype(dtype)


def integer_product(op: str, data: DTypeLike, weight: NDArray[Any], **attrs: Any) -> bytes:
    """``op`` with scales where it takes them, and with zero points of its operands."""
    zeros = {"za": np.zeros((), data), "zb": np.zeros((), weight.dtype)}
    scales = {"s": np.float32(1)}
    inputs = {
        "MatMulInteger": ["a", "b", "za", "zb"],
        "ConvInteger": ["a", "b", "za", "zb"],
        "QLinearMatMul": ["a", "s", "za", "b", "s", "zb", "s", "za"],
        "QLinearConv": ["a", "s", "za", "b", "s", "zb", "s", "za"],
        "QGemm": ["a", "s", "za", "b", "s", "zb", "", "s", "za"],
        "MatMulIntegerToFloat": ["a", "b", "s", "s", "za", "zb"],
        "DynamicQuantizeMatMul": ["x", "b", "s", "zb"],
    }[op]
    domain = "" if op in ("MatMulInteger", "ConvInteger") or "QLinear" in op else "com.microsoft"
    made = node(op, inputs, ["y"], name="product", domain=domain, **attrs)
    taken = {"x": np.float32} if "x" in inputs else {"a": data}
    return packed([made], taken, b=weight, **zeros, **scales)


MATRIX_PRODUCTS = (
    "MatMulInteger",
    "QLinearMatMul",
    "QGemm",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
)


@pytest.mark.parametrize("op", MATRIX_PRODUCTS)
def test_products_of_uint8_by_large_int8_are_named(op: str) -> None:
    assert saturating(integer_product(op, np.uint8, weights(np.int8, 8, 4))) == ["product"]
    assert "session.x64quantprecision=1" in RULES["pairs"].says


@pytest.mark.parametrize("op", MATRIX_PRODUCTS)
@pytest.mark.parametrize("weight", [weights(np.uint8, 8, 4), weights(np.int8, 8, 4, largest=64)])
def test_unsigned_weights_and_seven_bits_are_not_named(op: str, weight: NDArray[Any]) -> None:
    assert saturating(integer_product(op, np.uint8, weight)) == []


@pytest.mark.parametrize("op", [op for op in MATRIX_PRODUCTS if not op.startswith("Dynamic")])
def test_integer_products_of_one_type_are_not_named(op: str) -> None:
    assert saturating(integer_product(op, np.int8, weights(np.int8, 8, 4))) == []


def test_convolutions_are_named_unless_each_group_has_one_channel() -> None:
    whole = integer_product("QLinearConv", np.uint8, weights(np.int8, 8, 4, 3, 3))
    assert saturating(whole) == ["product"]
    depthwise = integer_product("QLinearConv", np.uint8, weights(np.int8, 8, 1, 3, 3), group=8)
    assert saturating(depthwise) == []
    # Two channels out of one: not depthwise to onnxruntime.
    doubled = integer_product("QLinearConv", np.uint8, weights(np.int8, 8, 1, 3, 3), group=4)
    assert saturating(doubled) == ["product"]


def test_conv_integer_saturates_the_other_way_round() -> None:
    swapped = integer_product("ConvInteger", np.int8, weights(np.uint8, 8, 4, 3, 3, largest=-120))
    (row,) = machines(read_network(swapped), ())
    assert row.rules == ["sums", "swapped", "pairs"]
    assert row.pair is not None
    assert (row.pair["weights"], row.pair["data"]) == ([248, 248], [-128, -128])
    assert (row.pair["exact"], row.pair["saturated"]) == (-63488, -32768)
    other = integer_product("ConvInteger", np.uint8, weights(np.int8, 8, 4, 3, 3, largest=60))
    assert saturating(other) == []


@pytest.mark.parametrize(("largest", "named"), [(127, ["lstm"]), (64, [])])
def test_a_dynamic_lstm_is_judged_by_its_weights(largest: int, named: list[str]) -> None:
    w, r = weights(np.int8, 1, 3, 16, largest=largest), weights(np.int8, 1, 4, 16)
    names = ["x", "w", "r", "", "", "", "", "", "sw", "zw", "sr", "zr"]
    scale, zero = np.ones(1, np.float32), np.zeros(1, np.int8)
    quiet = (r // 2).astype(np.int8)
    lstm = node(
        "DynamicQuantizeLSTM", names, ["y"], name="lstm", domain="com.microsoft", hidden_size=4
    )
    arrays = {"w": w, "r": quiet, "sw": scale, "sr": scale, "zw": zero, "zr": zero}
    assert saturating(packed([lstm], {"x": np.float32}, **arrays)) == named


def test_products_inside_of_branches_are_found() -> None:
    zeros = {"za": np.uint8(0), "zb": np.int8(0)}
    tensors = {"b": weights(np.int8, 8, 4), **zeros}
    branch = helper.make_graph(
        [node("MatMulInteger", ["q", "b", "za", "zb"], ["y"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    chosen = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    made = packed([chosen], {"c": np.bool_, "q": np.uint8})
    assert saturating(made) == ["inner", "inner"]


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._left = iter([{"x": rng.standard_normal((1, 8)).astype(np.float32)}] * 2)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self._left, None)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """Two matrix products of floats."""
    rng = np.random.default_rng(0)
    made = [
        node("MatMul", ["x", "v"], ["h"], name="first"),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [
            numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), name)
            for name in "vw"
        ],
    )
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "dense.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_what_quantize_dynamic_writes_is_named(dense: Path) -> None:
    quantize_dynamic(dense, dense.parent / "d.onnx")
    assert saturating(dense.parent / "d.onnx") == ["first_quant", "second_quant"]
    for options in ({"reduce_range": True}, {"weight_type": QuantType.QUInt8}):
        quantize_dynamic(dense, dense.parent / "d.onnx", **options)
        assert saturating(dense.parent / "d.onnx") == []


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_what_quantize_static_writes_is_named(
    dense: Path, form: QuantFormat, activations: QuantType
) -> None:
    """onnxruntime makes uint8 of a QDQ graph's int8 activations; the integer operators stay."""

    def told(**options: Any) -> list[str]:
        target = dense.parent / "s.onnx"
        types = {"activation_type": activations, "weight_type": QuantType.QInt8}
        quantize_static(dense, target, Samples(), quant_format=form, **types, **options)
        return saturating(target)

    saturates = form == QuantFormat.QDQ or activations == QuantType.QUInt8
    assert bool(told()) == saturates
    assert told(reduce_range=True) == []


@pytest.mark.parametrize(
    ("before", "value", "pooled", "told"),
    [
        ("Neg", {}, "MaxPool", True),
        ("Neg", {"v": np.float32(0)}, "MaxPool", True),
        ("Relu", {}, "MaxPool", False),
        ("Neg", {"v": np.float32(-np.inf)}, "MaxPool", False),
        ("Neg", {}, "AveragePool", False),
    ],
)
def test_zeros_that_a_maximum_should_see_are_told(
    before: str, value: dict[str, NDArray[Any]], pooled: str, told: bool
) -> None:
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    nodes = [
        node(before, ["x"], ["a"]),
        node("Pad", ["a", "p", *value], ["b"]),
        node(pooled, ["b"], ["y"], name="pool", kernel_shape=[3, 3]),
    ]
    model = onnx.load_from_string(packed(nodes, {"x": np.float32}, p=pads, **value))
    found = padding_notes(model)
    assert len(found) == told
    assert all("Pad_Fusion" in one and "(pool)" in one for one in found)
