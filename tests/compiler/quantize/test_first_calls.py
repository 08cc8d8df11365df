"""What stands in front of the first layer of real exports is integer too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler import evaluate
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.quantize import (
    Candidate,
    QConfig,
    diagnose,
    prerequisite_optimize,
)
from compiler.targets.ort.integer_executor import IntegerExecutor
from tests.compiler.quantize.candidates import calibrated, sqnr_db

node = helper.make_node
Arrays = dict[str, Any]
IMAGE = (1, 3, 12, 12)
LAYER = [node("Conv", ["t", "w"], ["c"], name="conv", pads=[1] * 4), node("Relu", ["c"], ["out"])]


def model(nodes: list[Any], arrays: Arrays, inputs: dict[str, tuple[int, ...]]) -> IRModule:
    """Inputs named ids hold integers, all others floats."""
    infos = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name in ("ids", "mask") else TensorProto.FLOAT, shape
        )
        for name, shape in inputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return prerequisite_optimize(*load(made.SerializeToString()), 3)


def quantized(mod: IRModule, data: list[Arrays], **fields: Any) -> Candidate:
    config = QConfig.recommended(calibrate_mode="max", **fields)
    made = calibrated(mod, config, data)
    assert made.partitioned is not None
    assert derive_static(made.partitioned).findings == ()
    exact = IntegerExecutor(made.partitioned)
    for batch in data:
        for ours, theirs in zip(evaluate(made.partitioned, batch), exact.run(batch), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    return made


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def slices() -> tuple[list[Any], Arrays, int]:
    corners = [(a, b) for a in (0, 1) for b in (0, 1)]
    nodes = [
        node("Slice", ["x", f"at{a}{b}", "end", "axes", "step"], [f"{a}{b}"]) for a, b in corners
    ]
    nodes.append(node("Concat", [f"{a}{b}" for a, b in corners], ["t"], axis=1))
    starts = {f"at{a}{b}": np.array([a, b]) for a, b in corners}
    rest = {"end": np.array([12, 12]), "axes": np.array([2, 3]), "step": np.array([2, 2])}
    return nodes, {**starts, **rest}, 12


FRONTS: dict[str, tuple[list[Any], Arrays, int]] = {
    "four slices side by side": slices(),
    "channels in another order": (
        [node("Gather", ["x", "order"], ["t"], axis=1)],
        {"order": np.array([2, 1, 0])},
        3,
    ),
    "padding by reflection": (
        [node("Pad", ["x", "pads"], ["t"], mode="reflect")],
        {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        3,
    ),
    "a larger image": (
        [node("Resize", ["x", "", "by"], ["t"], mode="linear")],
        {"by": np.array([1, 1, 2, 2], np.float32)},
        3,
    ),
    "a mean of pixels": (
        [node("AveragePool", ["x"], ["t"], kernel_shape=[2, 2], strides=[2, 2])],
        {},
        3,
    ),
    "grey from three colours": (
        [
            node("Split", ["x"], ["r", "g", "b"], axis=1),
            node("Mul", ["r", "half"], ["rr"]),
            node("Add", ["rr", "g"], ["rg"]),
            node("Add", ["rg", "b"], ["t"]),
        ],
        {"half": np.float32(0.5)},
        1,
    ),
    "a conversion, then a move": (
        [
            node("Sub", ["x", "half"], ["less"]),
            node("MaxPool", ["less"], ["t"], kernel_shape=[2, 2]),
        ],
        {"half": np.float32(0.5)},
        3,
    ),
}


@pytest.mark.parametrize("front", FRONTS)
def test_what_moves_or_pools_the_input_is_integer(front: str) -> None:
    nodes, arrays, channels = FRONTS[front]
    mod = model(nodes + LAYER, {"w": normal(4, channels, 3, 3), **arrays}, {"x": IMAGE})
    assert diagnose(mod, QConfig.recommended()).fully_integral
    data = [{"x": normal(*IMAGE, seed=seed)} for seed in range(4)]
    assert sqnr_db(mod, quantized(mod, data).partitioned, data) > 30


ALONE: dict[str, list[Any]] = {
    "a move": [node("Transpose", ["x"], ["out"])],
    "a scale": [node("Mul", ["x", "half"], ["out"])],
    "a scale and a move": [node("Mul", ["x", "half"], ["m"]), node("Flatten", ["m"], ["out"])],
    "bounds": [node("Clip", ["x", "half", "three"], ["out"])],
    "bounds beyond the data": [node("Clip", ["x", "thirty"], ["out"])],
    "places": [node("ArgMax", ["x"], ["i"], axis=1), node("Cast", ["i"], ["out"], to=1)],
    "where the largest is": [node("Hardmax", ["x"], ["out"], axis=1)],
    "a norm and its statistics": [
        node("LayerNormalization", ["x", "ones"], ["n", "mean", "inverse"]),
        node("Add", ["n", "mean"], ["sum"]),
        node("Add", ["sum", "inverse"], ["out"]),
    ],
    "a norm of the batch": [
        node(
            "BatchNormalization",
            ["x", "factor", "far", "far", "factor"],
            ["out", "m", "v"],
            training_mode=1,
        ),
    ],
    "bounds that are computed": [
        node("Relu", ["x"], ["y"]),
        node("Less", ["x", "y"], ["below"]),
        node("Where", ["below", "y", "x"], ["z"]),
        node("Less", ["top", "z"], ["above"]),
        node("Where", ["above", "top", "z"], ["out"]),
    ],
}


@pytest.mark.parametrize("name", ALONE)
def test_a_model_without_a_layer_is_integer(name: str) -> None:
    numbers: Arrays = {k: np.float32(v) for k, v in (("half", 0.5), ("three", 3), ("thirty", 30))}
    numbers |= {"ones": np.ones(12, "f4"), "factor": np.ones(3, "f4"), "far": np.float32([9, 1, 5])}
    inputs: dict[str, tuple[int, ...]] = {"x": IMAGE}
    if name == "bounds that are computed":
        inputs["top"] = ()
    mod = model(ALONE[name], numbers, inputs)
    data = [{"x": normal(*IMAGE, seed=seed), "top": np.float32(1)} for seed in range(4)]
    data = [{key: batch[key] for key in inputs} for batch in data]
    least = 15 if name in ("places", "where the largest is") else 30  # of 8 bits, some are equal
    assert sqnr_db(mod, quantized(mod, data).partitioned, data) > least


def test_a_convolution_in_one_dimension_reads_the_input() -> None:
    arrays = {"w": normal(4, 2, 3), "slope": np.array([[0.1], [0.3], [-0.2], [0.0]], np.float32)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("PRelu", ["c", "slope"], ["out"])]
    mod = model(nodes, arrays, {"x": (1, 2, 16)})
    data = [{"x": normal(1, 2, 16, seed=seed)} for seed in range(4)]
    assert sqnr_db(mod, quantized(mod, data).partitioned, data) > 35


def test_tokens_pick_rows_of_an_integer_table() -> None:
    """Indices below zero count from the end, as ONNX has it."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("Add", ["rows", "places"], ["sum"]),
        node("LayerNormalization", ["sum", "gamma"], ["norm"]),
        node("MatMul", ["norm", "w"], ["out"]),
    ]
    arrays = {
        "table": normal(20, 8),
        "places": normal(1, 6, 8, seed=1),
        "gamma": np.ones(8, np.float32),
        "w": normal(8, 4, seed=2),
    }
    mod = model(nodes, arrays, {"ids": (2, 6)})
    rng = np.random.default_rng(3)
    data = [{"ids": rng.integers(-20, 20, (2, 6))} for _ in range(4)]
    made = quantized(mod, data)
    assert sqnr_db(mod, made.partitioned, data) > 35


def test_without_tables_the_first_operators_stay_as_the_reference_has_them() -> None:
    nodes, arrays, channels = FRONTS["a larger image"]
    mod = model(nodes + LAYER, {"w": normal(4, channels, 3, 3), **arrays}, {"x": IMAGE})
    found = diagnose(mod, QConfig.recommended(integer_tables=False))
    assert [o.op for o in found.operators if o.status == "float"] == ["image.resize2d"]


def test_doctor_tells_conversions_of_inputs_from_what_keeps_a_model_from_integers() -> None:
    nodes, arrays, channels = FRONTS["a conversion, then a move"]
    mod = model(nodes + LAYER, {"w": normal(4, channels, 3, 3), **arrays}, {"x": IMAGE})
    found = diagnose(mod, QConfig.recommended())
    assert [(o.op, o.reason) for o in found.operators if o.status == "float"] == [
        ("subtract", "conversion")
    ]
    assert found.fully_integral
    assert found.causes() == []
