"""Groups of an output: read from the graph, or from jumps of power."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.insight.groups import groups_of, joined_fields, lost_channels

RNG = np.random.default_rng(0)


def head(last: list[onnx.NodeProto], shape: list[int]) -> onnx.ModelProto:
    """Boxes of 4 channels beside scores of 8, and what stands behind their Concat."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "k"], ["b"], name="boxes"),
        helper.make_node("Conv", ["x", "v"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"], name="scores"),
        helper.make_node("Concat", ["b", "s"], ["j"], axis=1),
        *last,
    ]
    stored = {
        "w": RNG.normal(size=(4, 16, 1, 1)).astype("f"),
        "v": RNG.normal(size=(8, 16, 1, 1)).astype("f"),
        "k": np.float32(64),
        "flat": np.array([1, 12, 100]),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16, 10, 10])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def boxes_and_scores(axis: int) -> np.ndarray:
    joined = np.concatenate([RNG.uniform(0, 300, (20, 4, 9)), RNG.uniform(0, 1, (20, 8, 9))], 1)
    return np.moveaxis(joined, 1, axis)


@pytest.mark.parametrize("axis", [1, 2])
def test_fields_of_a_concat_are_found_behind_moves(axis: int) -> None:
    last = [helper.make_node("Reshape", ["j", "flat"], ["f" if axis == 2 else "y"])]
    if axis == 2:
        last.append(helper.make_node("Transpose", ["f"], ["y"], perm=[0, 2, 1]))
    model = head(last, [1, 12, 100] if axis == 1 else [1, 100, 12])
    fields = joined_fields(model, ["y"])["y"]
    groups = groups_of(fields, boxes_and_scores(axis))
    assert list(map(str, groups)) == ["boxes (channels 0–3)", "scores (channels 4–11)"]
    assert groups[1].of(boxes_and_scores(axis)).max() <= 1


def test_fields_of_one_unit_are_one_group() -> None:
    fields = joined_fields(head([helper.make_node("Identity", ["j"], ["y"])], [1, 12, 10, 10]), "y")
    assert groups_of(fields["y"], RNG.normal(size=(20, 12, 3, 3))) == ()


@pytest.mark.parametrize("operator", ["Softmax", "Gemm"])
def test_a_rare_class_is_no_group(operator: str) -> None:
    inputs = ["x", "w"] if operator == "Gemm" else ["x"]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"])],
        "g",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 2]) for n in inputs],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])],
    )
    fields = joined_fields(helper.make_model(graph), ["y"])["y"]
    assert groups_of(fields, np.array([[1.0, 1e-6], [1.0, 2e-6]])) == ()


def test_channels_are_cut_where_their_power_jumps() -> None:
    values = RNG.normal(size=(50, 5)) * [300, 250, 310, 0.01, 0.02]
    assert list(map(str, groups_of(None, values))) == ["channels 0–2", "channels 3–4"]


def test_alternating_channels_are_one_group() -> None:
    assert groups_of(None, RNG.normal(size=(50, 6)) * np.array([300, 0.01] * 3)) == ()


def test_a_group_is_lost_with_its_variance() -> None:
    wanted = RNG.uniform(0, 1, (16, 8))
    assert lost_channels(wanted, np.zeros((16, 8)))
    assert not lost_channels(wanted, np.round(wanted * 8) / 8)
    assert not lost_channels(wanted[:15], np.zeros((15, 8))), "too few samples"
    assert not lost_channels(np.ones((16, 8)), np.zeros((16, 8))), "constant in float"
