"""NaN, foreign dtypes, unsigned numbers from 2^63 on: the value that ONNX defines, or one error."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.targets.reference.executor import ReferenceExecutor

node = helper.make_node
Array = np.ndarray[Any, Any]

SCALES = {"x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)}
BYTES = {"q": np.random.default_rng(0).integers(0, 255, (1, 2, 4, 4)).astype(np.uint8)}
ROWS = {"q": BYTES["q"].reshape(8, 4)}
CONSTANTS = {
    "w": np.random.default_rng(1).integers(0, 255, (3, 2, 3, 3)).astype(np.uint8),
    "m": np.random.default_rng(2).integers(0, 255, (4, 3)).astype(np.uint8),
    "t": np.float32(0.1),
    "three": np.uint8(3),
}
QUANTIZED: dict[str, tuple[list[onnx.NodeProto], dict[str, Array]]] = {
    "QuantizeLinear": ([node("QuantizeLinear", ["x", "s", "z"], ["y"])], SCALES),
    "DequantizeLinear": ([node("DequantizeLinear", ["q", "s", "z"], ["y"])], BYTES),
    "a pair": (
        [
            node("QuantizeLinear", ["x", "s", "z"], ["a"]),
            node("DequantizeLinear", ["a", "s", "z"], ["y"]),
        ],
        SCALES,
    ),
    "ConvInteger": ([node("ConvInteger", ["q", "w", "z", "three"], ["y"])], BYTES),
    "ConvInteger, weight": ([node("ConvInteger", ["q", "w", "three", "z"], ["y"])], BYTES),
    "MatMulInteger": ([node("MatMulInteger", ["q", "m", "z", "three"], ["y"])], ROWS),
    "QLinearConv": (
        [node("QLinearConv", ["q", "s", "z", "w", "t", "three", "t", "three"], ["y"])],
        BYTES,
    ),
    "QLinearConv, result": (
        [node("QLinearConv", ["q", "t", "three", "w", "t", "three", "s", "z"], ["y"])],
        BYTES,
    ),
    "QLinearMatMul": (
        [node("QLinearMatMul", ["q", "s", "z", "m", "t", "three", "t", "three"], ["y"])],
        ROWS,
    ),
    "QLinearMatMul, result": (
        [node("QLinearMatMul", ["q", "t", "three", "m", "t", "three", "s", "z"], ["y"])],
        ROWS,
    ),
}
FLOATS_8 = {
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8e5m2": TensorProto.FLOAT8E5M2,
    "bfloat16": TensorProto.BFLOAT16,
}
ZERO_POINTS: dict[str, Any] = {
    "float32": np.float32(np.nan),
    "float16": np.float16(np.nan),
    "float64": np.float64(3.5),
    "int32": np.int32(1 << 30),
    "int64": np.int64(1 << 40),
    "uint64": np.uint64((1 << 63) + 5),
    "bool": np.bool_(True),
    **{name: helper.make_tensor("z", kind, [], [np.nan]) for name, kind in FLOATS_8.items()},
}


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Array], constants: dict[str, Any]
) -> onnx.ModelProto:
    read = {name for each in nodes for name in each.input}
    held = [
        one if isinstance(one, onnx.TensorProto) else numpy_helper.from_array(np.asarray(one), name)
        for name, one in constants.items()
        if name in read
    ]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    made = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "g", given, [made], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def same_as_onnx(proto: onnx.ModelProto, inputs: dict[str, Array]) -> None:
    mod, params = load(proto.SerializeToString())
    with np.errstate(all="ignore"):
        (wanted,) = ReferenceEvaluator(proto).run(None, inputs)
        (found,) = ReferenceExecutor(mod).run({**params, **inputs})
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        *product(("QuantizeLinear", "DequantizeLinear", "a pair"), (np.nan, np.inf, -0.5)),
        ("QLinearConv", -0.5),  # ONNX does not say what integer a NaN becomes
    ],
)
def test_a_scale_that_no_quantizer_writes(name: str, scale: float) -> None:
    nodes, inputs = QUANTIZED[name]
    constants = {**CONSTANTS, "s": np.float32(scale), "z": np.uint8(3)}
    same_as_onnx(model(nodes, inputs, constants), inputs)


@pytest.mark.parametrize("zero_point", ZERO_POINTS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_zero_point_of_another_dtype_is_refused(name: str, zero_point: str) -> None:
    nodes, inputs = QUANTIZED[name]
    constants = {**CONSTANTS, "s": np.float32(0.1), "z": ZERO_POINTS[zero_point]}
    # Narrow floats are widened where they are read.
    with pytest.raises(OnnxImportError, match=f"(?i){zero_point}|zero point is float32"):
        load(model(nodes, inputs, constants).SerializeToString())


HALF = 1 << 63
LARGE = np.array([0, 1, HALF - 1, HALF, HALF + 7, 2**64 - 1], np.uint64)
OTHERS = np.array([HALF + 5, 1, HALF, 2, HALF - 1, 3], np.uint64)
BINARY = (
    "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Greater", "LessOrEqual", "Equal",
    "BitwiseAnd", "BitwiseXor",
)  # fmt: skip
CASTS = ("FLOAT", "DOUBLE", "INT64", "INT32", "UINT8", "BOOL")
UNSIGNED: dict[str, onnx.NodeProto] = {
    **{name: node(name, ["u", "k"], ["y"]) for name in BINARY},
    **{f"Cast {to}": node("Cast", ["u"], ["y"], to=getattr(TensorProto, to)) for to in CASTS},
    "BitShift left": node("BitShift", ["u", "bits"], ["y"], direction="LEFT"),
    "BitShift right": node("BitShift", ["u", "bits"], ["y"], direction="RIGHT"),
    "BitwiseNot": node("BitwiseNot", ["u"], ["y"]),
    "Clip": node("Clip", ["u", "low", "high"], ["y"]),
    "Concat": node("Concat", ["u", "k"], ["y"], axis=0),
    "Pad": node("Pad", ["u", "pads", "high"], ["y"]),
    "OneHot": node("OneHot", ["places", "depth", "pair"], ["y"]),
    "ReduceMax": node("ReduceMax", ["u"], ["y"]),
    "ReduceMin": node("ReduceMin", ["u"], ["y"]),
    "ReduceSum": node("ReduceSum", ["u"], ["y"]),
}
WITH_UNSIGNED = {
    "k": OTHERS,
    "bits": np.array([1, 2, 3, 1, 60, 63], np.uint64),
    "low": np.uint64(HALF - 1),
    "high": np.uint64(HALF + 6),
    "pads": np.array([1, 1]),
    "places": np.array([0, 2]),
    "depth": np.int64(3),
    "pair": np.array([1, HALF + 1], np.uint64),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_numbers_from_2_to_the_63_on(name: str) -> None:
    same_as_onnx(model([UNSIGNED[name]], {"u": LARGE}, WITH_UNSIGNED), {"u": LARGE})


def test_unsigned_constants_that_are_folded() -> None:
    nodes = [
        node("Add", ["k", "k"], ["a"]),
        node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
        node("Add", ["x", "b"], ["y"]),
    ]
    inputs = {"x": np.zeros(6, np.float32)}
    same_as_onnx(model(nodes, inputs, WITH_UNSIGNED), inputs)
