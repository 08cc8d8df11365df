"""A graph in several sessions gives the bits of one, and is cut only between kept tensors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler import relay
from compiler.errors import EvaluationError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Tuple
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import mark, prerequisite_optimize
from compiler.quantize.calibration.profile_function import profile_function
from compiler.targets.ort.segments import SegmentedExecutor, segments
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.networks import residual_chain
from tests.each import each


@pytest.fixture(scope="module")
def profile() -> onnx.ModelProto:
    """What calibration runs of six blocks x + relu(conv(x))."""
    float_module = prerequisite_optimize(*load(residual_chain(24)), opt_level=3)
    annotated, _ = mark(float_module, QConfig.recommended())
    return to_onnx(profile_function(annotated)[0])


@pytest.mark.parametrize("nodes", [1, 5])
def test_the_bits_are_those_of_one_session(profile: onnx.ModelProto, nodes: int) -> None:
    parts = list(segments(profile, nodes))
    assert len(parts) >= 4
    assert sum(len(part.graph.node) for part in parts) == len(profile.graph.node)
    assert all(len(part.graph.node) >= nodes for part in parts[:-1])
    whole, cut = OrtExecutor(profile), SegmentedExecutor(profile, nodes)
    assert cut.input_names == whole.input_names
    x = np.random.default_rng(0).normal(size=(1, 4, 2, 2)).astype("float32")
    for ours, theirs in zip(cut.run({"x": x}), whole.run({"x": x}), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_without_a_place_to_cut_keeps_the_order_of_its_ports() -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("a", [2, 3]), ("b", [3]), ("sum", [2, 3]), ("less", [3]))
    ]
    nodes = [
        helper.make_node("Neg", ["b"], ["less"]),
        helper.make_node("Relu", ["a"], ["more"]),
        helper.make_node("Add", ["more", "less"], ["sum"]),
    ]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    a, b = np.ones((2, 3), np.float32), np.full(3, 2, np.float32)
    total, less = SegmentedExecutor(model, 1).run([a, b])
    np.testing.assert_array_equal(total, a - b)
    np.testing.assert_array_equal(less, -b)


@pytest.mark.parametrize("nodes", [1, 1000])
def test_constants_beside_the_model_give_the_bits_of_those_in_it(nodes: int) -> None:
    rng = np.random.default_rng(2)
    weights = [relay.const(rng.normal(size=(160, 160)).astype("float32")) for _ in range(3)]
    made, found = relay.var("x", (4, 160)), []
    for weight in weights:
        made = relay.op.nn.relu(relay.op.nn.dense(made, weight))
        found.append(made)
    mod = relay.module(Tuple(tuple(found)))
    large: dict[str, np.ndarray] = {}
    model = to_onnx(mod, large=large)
    assert len(model.SerializeToString()) < 10_000
    assert sum(array.nbytes for array in large.values()) == 3 * 160 * 160 * 4
    beside = SegmentedExecutor(model, nodes, large=large)
    del large, weights
    x = rng.normal(size=(4, 160)).astype("float32")
    for ours, theirs in zip(beside.run([x]), OrtExecutor(to_onnx(mod)).run([x]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("arena", [True, False])
def test_results_of_earlier_runs_stay_as_they_were(profile: onnx.ModelProto, arena: bool) -> None:
    rng = np.random.default_rng(1)
    inputs = [{"x": rng.normal(size=(1, 4, 2, 2)).astype("float32")} for _ in range(4)]
    executor = SegmentedExecutor(profile, arena=arena)
    held = [executor.run(feed) for feed in inputs]
    for feed, found in each(zip(inputs, held, strict=True)):
        for ours, theirs in each(zip(found, OrtExecutor(profile).run(feed), strict=True)):
            np.testing.assert_array_equal(ours, theirs)


def test_a_graph_of_bounded_size_is_left_whole(profile: onnx.ModelProto) -> None:
    assert list(segments(profile, len(profile.graph.node) // 2)) == [profile]


def test_an_input_that_is_missing_is_named(profile: onnx.ModelProto) -> None:
    with pytest.raises(EvaluationError, match="input 'x' is missing"):
        SegmentedExecutor(profile, 1).run({})


@pytest.mark.parametrize(
    ("second", "outputs", "parts"),
    [
        ("Relu", ("a", "b", "c"), 3),
        ("Relu", ("b", "c"), 2),  # a is kept by nobody
        ("Transpose", ("a", "b", "c"), 1),  # may be fused with what makes and reads its tensors
    ],
)
def test_a_graph_is_cut_between_kept_tensors_only(
    second: str, outputs: tuple[str, ...], parts: int
) -> None:
    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 2))

    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"]),
        helper.make_node(second, ["a"], ["b"]),
        helper.make_node("Add", ["b", "x"], ["c"]),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], [value(name) for name in outputs])
    assert len(list(segments(helper.make_model(graph), 1))) == parts
