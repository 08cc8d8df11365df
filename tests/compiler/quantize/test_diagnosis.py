"""diagnose: what becomes integer, what does not, and what it says to do about it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import NotFullyIntegralError
from compiler.ir.expr import Expr, Function, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import (
    Diagnosis,
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    diagnose,
    mark,
    prerequisite_optimize,
)
from compiler.quantize.diagnosis import notes_of, why_float
from compiler.span import SequentialSpan, Span, onnx_nodes
from tests.compiler import networks as models


def _diagnosed(model: tuple[IRModule, dict[str, Any]], **fields: Any) -> Diagnosis:
    mod = prerequisite_optimize(*model, 3)
    return diagnose(mod, QConfig.recommended(**fields))


def _rest(value: Expr) -> Any:
    """What no rule is known for."""
    return relay.op.trunc_mod(value, relay.const(np.float32(3)))


def _around(middle: Any) -> tuple[IRModule, dict[str, Any]]:
    """Convolution, ``middle``, convolution."""
    x = relay.var("x", (1, 3, 8, 8))
    first, second = relay.var("first", (4, 3, 3, 3)), relay.var("second", (4, 4, 3, 3))
    rng = np.random.default_rng(0)
    params = {
        "first": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "second": rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
    }
    attrs = {"channels": 4, "kernel_size": (3, 3), "padding": 1}
    value: Expr = relay.op.nn.conv2d(x, first, **attrs)
    value = relay.op.nn.conv2d(middle(value), second, **attrs)
    return relay.module(Function((x, first, second), value)), params


def test_a_convolutional_network_is_integer_throughout() -> None:
    found = _diagnosed(models.conv_chain())
    assert found.fully_integral
    assert found.float_count == 0
    assert found.integer_count == len(found.operators) == 9
    assert found.causes() == []
    assert found.obstacles == ()
    assert {operator.advice for operator in found.operators} == {""}


def test_a_bias_add_at_level_two_is_told_the_level_that_it_needs() -> None:
    bias = relay.const(np.ones(4, np.float32))
    mod = prerequisite_optimize(*_around(lambda v: relay.op.nn.bias_add(v, bias)), 2)
    (row, *_) = diagnose(mod, QConfig(skip_conv_layers=[])).causes()
    assert row["op"] == "nn.bias_add"
    assert row["advice"] == "CanonicalizeOps writes nn.bias_add otherwise: set prerequisite_level=3"


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("symmetric", "which activation_scheme=unsigned uses"),
        ("unsigned", "the others symmetric"),
        ("asymmetric", "1 others may get a zero point"),
    ],
)
def test_activations_are_counted_by_their_sign(scheme: str, says: str) -> None:
    config = QConfig.recommended(activation_scheme=scheme)
    annotated, _ = mark(prerequisite_optimize(*models.conv_chain(), 3), config)
    (note,) = notes_of(annotated, config)
    assert "2 of 3 quantized activations are never negative" in note
    assert says in note


def test_an_input_that_is_an_output_as_well_keeps_nothing_from_integers() -> None:
    x, weight = relay.var("x", (1, 8)), relay.const(np.eye(4, 8, dtype=np.float32))
    outputs = Tuple((relay.op.nn.dense(x, weight), relay.op.copy(x)))
    found = _diagnosed((relay.module(Function((x,), outputs)), {}))
    assert found.fully_integral
    assert found.causes() == []
    assert [entry.reason for entry in found.operators if entry.op == "copy"] == ["copied"]


def test_an_operator_without_rules_is_the_cause_and_what_reads_it_the_consequence() -> None:
    found = _diagnosed(_around(lambda v: relay.op.nn.relu(_rest(v))))
    assert not found.fully_integral
    by_name = {entry.op: entry for entry in found.operators}
    assert by_name["trunc_mod"].reason == "no_rule:QuantizeAnnotate"
    assert by_name["nn.relu"].reason == "operand_float"
    place = next(i for i, entry in enumerate(found.operators) if entry.op == "trunc_mod")
    assert by_name["nn.relu"].because_of == place
    assert "trunc_mod" in by_name["nn.relu"].advice
    (cause,) = found.causes()
    assert (cause["op"], cause["count"], cause["consequences"]) == ("trunc_mod", 1, 1)
    assert "trunc_mod" in found.obstacles[0]


def test_the_advice_for_a_skipped_layer_is_the_list_without_it() -> None:
    found = _diagnosed(models.conv_chain(), skip_conv_layers=[0, 2])
    skipped = [entry for entry in found.operators if entry.reason == "skipped_layer"]
    assert [entry.conv_index for entry in skipped] == [0, 2]
    assert [entry.advice for entry in skipped] == [
        "set skip_conv_layers=[2]",
        "set skip_conv_layers=[0]",
    ]


def test_following_the_advice_for_the_reference_defaults_makes_it_integral() -> None:
    mod = prerequisite_optimize(*models.mlp(), 3)
    found = diagnose(mod, QConfig())
    assert not found.fully_integral
    assert {cause["advice"] for cause in found.causes()} >= {"set skip_dense_layer=False"}
    assert diagnose(mod, QConfig(skip_dense_layer=False, skip_conv_layers=[])).fully_integral


def test_operators_with_tables_need_the_field_that_allows_tables() -> None:
    model = _around(relay.op.sigmoid)
    without = _diagnosed(model, integer_tables=False)
    assert not without.fully_integral
    assert any("integer_tables=True" in cause["advice"] for cause in without.causes())
    assert _diagnosed(model, integer_tables=True).fully_integral


def test_fields_that_need_data_do_not_need_them_here() -> None:
    fields = {"smooth_alpha": 0.5, "weight_rounding": "corrected"}
    assert _diagnosed(models.conv_chain(), **fields).fully_integral


def test_the_guard_names_the_field_that_enables_the_operator() -> None:
    found = _diagnosed(models.conv_chain(), debug_enabled_ops=["nn.relu"])
    advice = {entry.advice for entry in found.operators if entry.reason == "guard"}
    assert any("nn.conv2d" in text and "debug_enabled_ops" in text for text in advice)


def test_a_weight_that_is_an_input_is_an_obstacle_with_its_operator() -> None:
    mod, params = models.conv_chain(depth=1)
    del params["conv0_w"]
    found = _diagnosed((mod, params))
    assert not found.fully_integral
    assert "nn.conv2d" in found.obstacles[0]
    assert "constant" in found.obstacles[0]


def test_everything_is_plain_json() -> None:
    found = _diagnosed(_around(_rest))
    values = json.loads(json.dumps(found.to_dict()))
    assert values["fully_integral"] is False
    assert values["integer"] + values["float"] == len(values["operators"])


def test_two_thousand_operators_are_no_depth() -> None:
    def chain(value: Expr) -> Expr:
        for _ in range(2_000):
            value = _rest(value)
        return value

    found = _diagnosed(_around(chain))
    assert found.float_count >= 2_000


def test_names_of_onnx_nodes_come_from_spans() -> None:
    text, node = Span("file.relay", 3), Span("onnx:Conv_1")
    assert onnx_nodes(None) == ()
    assert onnx_nodes(text) == ()
    assert onnx_nodes(SequentialSpan((node, text, Span("onnx:Add_2")))) == ("Conv_1", "Add_2")


def test_a_second_diagnosis_of_a_module_says_what_the_first_said() -> None:
    mod = prerequisite_optimize(relay.module(relay.op.tanh(relay.var("x", (1, 4)))))
    first = diagnose(mod, QConfig.recommended())
    assert first.operators
    assert diagnose(mod, QConfig.recommended()) == first


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"integer_tables": False},
        {"skip_conv_layers": [0]},
        {"activation_scheme": "asymmetric", "calibrate_mode": "kl_divergence"},
    ],
)
@pytest.mark.parametrize(
    "network",
    [models.mlp, models.residual_net, models.mobile_net, models.branches, models.attention],
    ids=lambda network: network.__name__,
)
def test_what_is_said_without_data_is_what_a_calibrated_build_does(
    network: Any, change: dict[str, Any]
) -> None:
    mod = prerequisite_optimize(*network(), 3)
    config = QConfig.recommended(partition_conversions="enabled", **change)
    said = diagnose(mod, config)
    rng = np.random.default_rng(0)
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}
    data = [{n: rng.normal(0, 1, t.concrete_shape).astype(t.dtype) for n, t in types.items()}]
    annotated, _ = mark(mod, config)
    stats = calibration_stats(annotated, data, (config.percentile,))
    made = build_candidate(mod, config, activation_scales(stats, config))
    assert [(e.op, e.status, e.reason) for e in said.operators] == [
        (call.op, call.status, call.reason) for call in made.report.calls
    ]
    assert all(bool(e.reason and e.advice) == (e.status == "float") for e in said.operators)
    whole = config.with_overrides(partition_conversions="fully_integral")
    if said.fully_integral:
        assert build_candidate(mod, whole, activation_scales(stats, config)).partitioned
    else:
        with pytest.raises(NotFullyIntegralError):
            build_candidate(mod, whole, activation_scales(stats, config))


def test_whole_numbers_that_nothing_bounds_are_the_cause() -> None:
    op = relay.op
    t = relay.var("t", (1,), "int64")
    real = op.cast(op.concatenate((t, t), axis=0), dtype="float32")
    body = op.nn.dense(op.reshape(real, newshape=(1, 2)), relay.const(np.ones((3, 2), np.float32)))
    mod = prerequisite_optimize(infer_module(relay.module(relay.Function((t,), body))), None, 3)
    (found,) = (one for one in diagnose(mod, QConfig.recommended()).operators if one.op == "cast")
    assert (found.status, found.reason) == ("float", "unbounded")
    assert why_float(found.reason) == "makes whole numbers real that nothing bounds"
