"""ArgMax and ArgMin behind a network: positions among integers, the same in every form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compiler import evaluate, relay
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import (
    QConfig,
    diagnose,
    prerequisite_optimize,
)
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.ort.integer_executor import IntegerExecutor
from tests.compiler.quantize.candidates import Batch, assert_same_integers, calibrated
from tests.needs import skip

SHAPE = (1, 3, 8, 8)


def segmentation(
    attrs: Mapping[str, int], op_type: str = "ArgMax", logits: bool = False, twins: bool = False
) -> IRModule:
    """Conv, Relu, Conv of 6 classes, ArgMax; with ``twins`` classes 1 and 4 are always equal."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "w1": rng.standard_normal((6, 8, 1, 1)).astype(np.float32),
        "b1": rng.standard_normal(6).astype(np.float32),
    }
    # Scales per channel that differ by far: only at one scale the numbers can be compared.
    weights["w1"] *= np.array([1, 4, 0.1, 1, 4, 0.5], np.float32).reshape(6, 1, 1, 1)
    if twins:
        weights["w1"][4], weights["b1"][4] = weights["w1"][1], weights["b1"][1]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    if logits:
        outputs.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    answer = helper.make_node(op_type, ["c"], ["y"], name="answer")
    answer.attribute.extend(helper.make_attribute(key, value) for key, value in attrs.items())
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4, name="stem"),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Conv", ["r", "w1", "b1"], ["c"], name="head"),
            answer,
        ],
        "segmentation",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return prerequisite_optimize(*load(proto.SerializeToString()), 3, simplify=True)


def batches(count: int = 4) -> list[Batch]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(count)]


def quantized(mod: IRModule, **fields: Any) -> IRModule:
    config = QConfig.recommended(**{"calibrate_mode": "max", **fields})
    module = calibrated(mod, config, batches()).partitioned
    assert module is not None
    return module


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"axis": 1, "keepdims": 0},
        {"axis": 1, "keepdims": 1, "select_last_index": 1},
        {"axis": -1, "keepdims": 1},
    ],
)
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_positions_are_integers_of_the_core_and_the_same_everywhere(
    op_type: str, attrs: dict[str, int], scheme: str
) -> None:
    mod = segmentation(attrs, op_type)
    made = quantized(mod, activation_scheme=scheme)
    assert_same_integers(made, batches(2))
    (float_answer,) = evaluate(mod, batches()[0])
    (answer,) = evaluate(made, batches()[0])
    assert answer.dtype == np.int64
    assert answer.shape == float_answer.shape
    assert (answer == float_answer).mean() > 0.9


@pytest.mark.parametrize(("last", "wanted"), [(0, 1), (1, 4)])
def test_of_equal_classes_the_first_counts_or_the_last_if_asked(last: int, wanted: int) -> None:
    mod = segmentation({"axis": 1, "keepdims": 0, "select_last_index": last}, twins=True)
    made = quantized(mod)
    assert_same_integers(made, batches(2))
    found = np.concatenate([evaluate(made, batch)[0] for batch in batches()])
    assert (found == wanted).any()
    assert not (found == 5 - wanted).any()


def test_accumulators_are_compared_as_wide_as_they_are() -> None:
    """Eight bits in front of the answer would make ties of close classes."""
    module = quantized(segmentation({"axis": 1}))
    nodes = post_order(module["quantized_main"].body)
    (data,) = [node.operands()[-1] for node in nodes if is_op_call(node, "argmax")]
    assert data.tensor_type.dtype == "int32"


def test_the_logits_may_be_a_result_as_well() -> None:
    made = quantized(segmentation({"axis": 1}, logits=True))
    assert_same_integers(made, batches(2))


def test_the_diagnosis_calls_the_answer_integer() -> None:
    found = diagnose(segmentation({"axis": 1}), QConfig.recommended())
    assert found.fully_integral
    assert [entry.status for entry in found.operators if entry.op == "argmax"] == ["integer"]


def test_without_integer_tables_it_stays_float() -> None:
    found = diagnose(segmentation({"axis": 1}), QConfig.recommended(integer_tables=False))
    assert not found.fully_integral


@pytest.mark.parametrize("attrs", [{"axis": 1}, {"axis": 1, "select_last_index": 1}, {"axis": 3}])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_generated_c_gives_the_same_positions(op_type: str, attrs: dict[str, int]) -> None:
    if find_compiler() is None:
        skip("a C compiler")
    module = quantized(segmentation(attrs, op_type, twins=True))
    rng = np.random.default_rng(2)
    in_c = CExecutor(module, "quantized_main")
    for low, high in ((-127, 128), (-2, 2)):
        name = in_c.input_names[0]
        data = {name: rng.integers(low, high, SHAPE).astype(np.int8)}
        wanted = evaluate(module, data, function="quantized_main")
        np.testing.assert_array_equal(in_c.run(data)[0], wanted[0])


@settings(max_examples=25, deadline=None)
@given(
    op=st.sampled_from(["argmax", "argmin"]),
    last=st.booleans(),
    factor=st.sampled_from([1, 1 << 20, 1 << 33]),
    axis=st.sampled_from([(0,), (1,), None]),
    seed=st.integers(0, 1 << 16),
)
def test_integers_of_every_width_are_compared_whole(
    op: str, last: bool, factor: int, axis: tuple[int, ...] | None, seed: int
) -> None:
    """Some int64 comparisons of onnxruntime see the low 32 bits only: equal where 2^33 divides."""
    x = relay.var("x", (5, 16), "int8")
    wide = relay.op.cast(x, dtype="int64") * relay.const(np.asarray(factor, np.int64))
    body = getattr(relay.op, op)(wide, axis=axis, select_last_index=last, dtype="int64")
    mod = infer_module(IRModule.from_expr(relay.Function((x,), body)))
    data = {"x": np.random.default_rng(seed).integers(-3, 4, (5, 16)).astype(np.int8)}
    (wanted,) = evaluate(mod, data)
    np.testing.assert_array_equal(IntegerExecutor(mod).run(data)[0], wanted)


def test_a_position_is_found_before_others_read_eight_bits() -> None:
    """Of 200 scores, of which 8 bits hold many equal."""
    rng, op = np.random.default_rng(2), relay.op
    weight = rng.standard_normal((1, 16)) + rng.normal(0, 0.02, (200, 16))

    def made(*, both: bool) -> IRModule:
        x = relay.var("x", (1, 16))
        scores = op.nn.dense(x, relay.const(weight.astype(np.float32)))
        place = op.argmax(scores, axis=(1,))
        chances = op.nn.softmax(scores, axis=1)
        return prerequisite_optimize(relay.module(relay.Tuple([place, chances]) if both else place))

    data = [{"x": rng.standard_normal((1, 16)).astype(np.float32)} for _ in range(40)]
    modules = [
        calibrated(made(both=both), QConfig.recommended(), data).module for both in (False, True)
    ]
    assert_same_integers(modules[1], data[:2])
    alone, beside = ([evaluate(mod, batch)[0] for batch in data] for mod in modules)
    np.testing.assert_array_equal(alone, beside)
