"""Scan and Loop: bodies that become loops, counters that are known, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compiler import evaluate
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.ir.walk import mentions
from compiler.quantize import QConfig, prerequisite_optimize
from tests.compiler.quantize.candidates import assert_same_integers, calibrated
from tests.each import each

STEPS, HELD, READ = 6, 5, 3
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def value(name: str, *shape: int, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(0, 0.5, (READ, HELD)).astype(np.float32),
        "r": rng.normal(0, 0.3, (HELD, HELD)).astype(np.float32),
        "h0": np.zeros((1, HELD), np.float32),
    }


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    stored: dict[str, Any],
    opset: int = 17,
) -> bytes:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


CELL = (
    node("MatMul", ["h", "r"], ["hr"]),
    node("MatMul", ["now", "w"], ["xw"]),
    node("Add", ["hr", "xw"], ["sum"]),
    node("Tanh", ["sum"], ["h_next"]),
    node("Relu", ["sum"], ["y"]),
)


def scan(axis: int = 0, back: tuple[int, int] = (0, 0), opset: int = 17) -> bytes:
    """A cell whose input and output have their steps along an axis, from one end or the other."""
    body = helper.make_graph(
        CELL, "body", [value("h", 1, HELD), value("now", 1, READ)],
        [value("h_next", 1, HELD), value("y", 1, HELD)],
    )  # fmt: skip
    shapes = [(STEPS, 1, READ), (STEPS, 1, HELD)]
    if axis:
        shapes = [(1, STEPS, READ), (1, STEPS, HELD)]
    loop = node(
        "Scan",
        ["h0", "x"],
        ["last", "ys"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis - 3 if axis else 0],
        scan_input_directions=[back[0]],
        scan_output_directions=[back[1]],
    )
    outputs = [value("last", 1, HELD), value("ys", *shapes[1])]
    return model([loop], [value("x", *shapes[0])], outputs, weights(), opset)


TAKEN = (node("Gather", ["x", "i"], ["now"], axis=0), *CELL)


def loop(
    nodes: Sequence[onnx.NodeProto] = (*TAKEN, node("Identity", ["on"], ["goes_on"])),
    trips: str = "steps",
    handed_on: Sequence[tuple[str, str, str, onnx.ValueInfoProto]] = (),
    **stored: Any,
) -> bytes:
    """A cell that takes its steps by their number; further states: first, taken, given, type."""
    carried = [("h0", "h", "h_next", value("h", 1, HELD)), *handed_on]
    infos = [value("i", kind=INT), value("on", kind=BOOL), *(one[3] for one in carried)]
    results = [value("goes_on", kind=BOOL)]
    ends = []
    for _, taken, given_name, info in carried:
        result = onnx.ValueInfoProto()
        result.CopyFrom(info)
        result.name = given_name
        results.append(result)
        end = onnx.ValueInfoProto()
        end.CopyFrom(info)
        end.name = f"{taken}_last"
        ends.append(end)
    body = helper.make_graph(nodes, "body", infos, [*results, value("y", 1, HELD)])
    names = [end.name for end in ends]
    made = node("Loop", [trips, "", *(one[0] for one in carried)], [*names, "ys"], body=body)
    known = {"steps": np.int64(STEPS), **weights(), **stored}
    outputs = [*ends, value("ys", STEPS, 1, HELD)]
    return model([made], [value("x", STEPS, 1, READ)], outputs, known)


def free_running() -> bytes:
    """A state that only its own steps change."""
    nodes = [
        node("MatMul", ["h", "r"], ["hr"]),
        node("Add", ["h", "hr"], ["sum"]),
        node("Tanh", ["sum"], ["h_next"]),
        node("Relu", ["sum"], ["y"]),
        node("Identity", ["on"], ["goes_on"]),
    ]
    infos = [value("i", kind=INT), value("on", kind=BOOL), value("h", 1, HELD)]
    ends = [value("goes_on", kind=BOOL), value("h_next", 1, HELD), value("y", 1, HELD)]
    made = node(
        "Loop",
        ["steps", "", "x"],
        ["last", "ys"],
        body=helper.make_graph(nodes, "body", infos, ends),
    )
    outputs = [value("last", 1, HELD), value("ys", STEPS, 1, HELD)]
    return model([made], [value("x", 1, HELD)], outputs, {"steps": np.int64(STEPS), **weights()})


COUNTER = ("k0", "k", "k_next", value("k", kind=INT))
COUNTED = (
    *TAKEN,
    node("Add", ["k", "two"], ["k_next"]),
    node("Less", ["k_next", "end"], ["goes_on"]),
)
MODELS = {
    "scan": scan(),
    "scan backwards": scan(back=(1, 0)),
    "scan along another axis": scan(axis=1, back=(1, 1)),
    "loop": loop(),
    "loop that reads nothing": free_running(),
    "loop that counts": loop(
        COUNTED, "", [COUNTER], k0=np.int64(3), two=np.int64(2), end=np.int64(3 + 2 * STEPS)
    ),
    "loop that hands its input on": loop(
        handed_on=[("x", "same", "same", value("same", STEPS, 1, READ))]
    ),
}


def batches(file: bytes, count: int = 8) -> list[dict[str, Any]]:
    shape = [
        d.dim_value for d in onnx.load_from_string(file).graph.input[0].type.tensor_type.shape.dim
    ]
    rng = np.random.default_rng(3)
    return [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_computes_what_onnxruntime_does(name: str) -> None:
    mod, params = load(MODELS[name])
    assert mentions(mod["main"], ("scan",))
    session = onnxruntime.InferenceSession(MODELS[name])
    for batch in batches(MODELS[name], 3):
        ours = evaluate(mod, {**batch, **params})
        for found, right in zip(ours, session.run(None, batch), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
            assert found.dtype == right.dtype


@pytest.mark.parametrize("name", MODELS)
def test_every_form_of_a_quantized_loop_agrees(name: str) -> None:
    mod, params = load(MODELS[name])
    mod = prerequisite_optimize(mod, params, 3)
    data = batches(MODELS[name])
    made = calibrated(mod, QConfig.recommended(calibrate_mode="max"), data)
    assert made.partitioned is not None
    assert mentions(made.partitioned["quantized_main"], ("scan",))
    assert_same_integers(made.partitioned, data[:2])
    for batch in data[:2]:
        wanted = evaluate(mod, batch)[0]
        lost = np.square(evaluate(made.partitioned, batch)[0] - wanted).sum()
        assert lost < 1e-2 * np.square(wanted).sum()


@settings(max_examples=20, deadline=None)
@given(st.integers(-4, 4), st.integers(1, 3), st.integers(1, 9))
def test_steps_are_counted_as_the_loop_does(first: int, by: int, steps: int) -> None:
    nodes = [
        node("Add", ["k", "by"], ["k_next"]),
        node("Less", ["k_next", "end"], ["goes_on"]),
        node("Cast", ["k"], ["real"], to=FLOAT),
        node("Mul", ["a", "real"], ["product"]),
        node("Add", ["product", "one"], ["a_next"]),
    ]
    infos = [value("i", kind=INT), value("on", kind=BOOL), value("k", kind=INT), value("a", 2)]
    ends = [value("goes_on", kind=BOOL), value("k_next", kind=INT), value("a_next", 2)]
    body = helper.make_graph(nodes, "body", infos, ends)
    made = node("Loop", ["", "", "k0", "x"], ["k_last", "a_last"], body=body)
    stored = {"k0": np.int64(first), "by": np.int64(by), "one": np.float32([1])}
    stored["end"] = np.int64(first + by * steps)
    outputs = [value("k_last", kind=INT), value("a_last", 2)]
    file = model([made], [value("x", 2)], outputs, stored)
    x = {"x": np.float32([0.5, -2.0])}
    mod, params = load(file)
    ours, theirs = evaluate(mod, {**x, **params}), onnxruntime.InferenceSession(file).run(None, x)
    for found, right in each(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(found, right, rtol=1e-6)


def data_dependent() -> bytes:
    """A dense layer, and a loop that goes on while a sum is positive."""
    body = helper.make_graph(
        [
            node("MatMul", ["h", "r"], ["h_next"]),
            node("ReduceSum", ["h_next"], ["total"], keepdims=0),
            node("Greater", ["total", "zero"], ["goes_on"]),
        ],
        "body",
        [value("i", kind=INT), value("on", kind=BOOL), value("h", 1, HELD)],
        [value("goes_on", kind=BOOL), value("h_next", 1, HELD)],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["begun"], name="dense"),
        node("Loop", ["", "", "begun"], ["last"], body=body, name="while"),
    ]
    stored = {**weights(), "zero": np.float32(0)}
    return model(nodes, [value("x", 1, READ)], [value("last", 1, HELD)], stored)


def nested() -> bytes:
    inner = onnx.load_from_string(scan()).graph.node[0]
    body = helper.make_graph(
        [inner, node("Add", ["h", "last"], ["h_next"])],
        "outer",
        [value("h", 1, HELD), value("x", STEPS, 1, READ)],
        [value("h_next", 1, HELD)],
    )
    outer = node("Scan", ["h0", "all"], ["end"], body=body, num_scan_inputs=1, name="outer")
    return model([outer], [value("all", 2, STEPS, 1, READ)], [value("end", 1, HELD)], weights())


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (data_dependent(), r"Loop: when it ends depends on the inputs \(condition 'goes_on'\)"),
        (nested(), "Scan: the Scan in it is a loop within a loop"),
        (loop(steps=np.int64(0)), "Loop: it takes no step"),
        (loop(trips=""), "Loop: it takes more than 16777216 steps"),
        (
            loop(COUNTED, "", [COUNTER], k0=np.int64(0), two=np.int64(0), end=np.int64(9)),
            "Loop: what counts its steps is too large after 65536 of them",
        ),
    ],
)
def test_a_loop_that_cannot_be_one_is_refused_by_name(file: bytes, what: str) -> None:
    with pytest.raises(OnnxImportError, match=what) as caught:
        load(file)
    assert "ONNX node" in str(caught.value)
    assert caught.value.fix


def test_a_counter_of_a_damaged_file_is_refused_by_name() -> None:
    proto = onnx.load_from_string(MODELS["loop that counts"])
    (body,) = (a.g for a in proto.graph.node[0].attribute)
    (counter,) = (one for one in body.node if list(one.output) == ["k_next"])
    counter.op_type = "Cast"  # which lacks its dtype
    with pytest.raises(OnnxImportError, match="Loop: its steps cannot be counted"):
        load(proto.SerializeToString())


def test_a_state_that_stays_as_it_is_has_one_scale() -> None:
    """skl2onnx writes distances to stored rows so: the state is the row that is asked for."""
    rows = np.random.default_rng(1).normal(0, 0.5, (6, 5)).astype(np.float32)
    x = value("x", 1, rows.shape[1])
    body = helper.make_graph(
        [
            node("Identity", ["held"], ["next"]),
            node("Sub", ["held", "row"], ["apart"]),
            node("ReduceSumSquare", ["apart"], ["distance"], axes=[1], keepdims=0),
        ],
        "body",
        [value("held", 1, rows.shape[1]), value("row", rows.shape[1])],
        [value("next", 1, rows.shape[1]), value("distance", 1)],
    )
    loop_of_rows = node("Scan", ["x", "rows"], ["", "y"], body=body, num_scan_inputs=1)
    file = model([loop_of_rows], [x], [value("y", 6, 1)], {"rows": rows})
    mod, params = load(file)
    mod = prerequisite_optimize(mod, params, 3)
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(0, 1, (1, rows.shape[1])).astype(np.float32)} for _ in range(16)]
    made = calibrated(mod, QConfig.recommended(), data).partitioned
    assert_same_integers(made, data)
