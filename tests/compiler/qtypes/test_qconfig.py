"""QConfig: defaults, checks, scopes, the text form."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from compiler.ir.expr import Call, Op, Var
from compiler.quantize import (
    QAnnotateKind,
    QConfig,
    current_qconfig,
    kind2str,
    qconfig,
    qconfig_from_text,
)

DEFAULTS = {
    "nbit_input": 8,
    "nbit_weight": 8,
    "nbit_activation": 32,
    "dtype_input": "int8",
    "dtype_weight": "int8",
    "dtype_activation": "int32",
    "calibrate_mode": "global_scale",
    "global_scale": 8.0,
    "weight_scale": "power2",
    "skip_dense_layer": True,
    "skip_conv_layers": [0],
    "do_simulation": False,
    "round_for_shift": True,
    "debug_enabled_ops": None,
    "rounding": "UPWARD",
    "calibrate_chunk_by": -1,
    "partition_conversions": "disabled",
    "percentile": 0.99999,
    "bias_mode": "weight",
    "keep_output_wide": False,
    "stop_after_global_pool": True,
    "avg_pool_round": False,
    "weight_granularity": "tensor",
    "activation_scheme": "symmetric",
    "integer_tables": False,
    "prerequisite_level": None,
    "smooth_alpha": None,
    "requantization": "fixed_point",
    "weight_rounding": "nearest",
    "layers": {},
}
RECOMMENDED = {
    "skip_conv_layers": [],
    "skip_dense_layer": False,
    "stop_after_global_pool": False,
    "bias_mode": "accumulator",
    "keep_output_wide": True,
    "avg_pool_round": True,
    "prerequisite_level": 3,
    "calibrate_mode": "percentile",
    "weight_scale": "max",
    "weight_granularity": "channel",
    "activation_scheme": "unsigned",
    "integer_tables": True,
    "requantization": "float_product",
    "partition_conversions": "fully_integral",
}


def test_the_defaults_are_those_of_the_table() -> None:
    assert qconfig().to_dict() == DEFAULTS
    assert current_qconfig() == QConfig() == qconfig()
    for name, value in DEFAULTS.items():
        assert getattr(qconfig(), name) == value


def test_the_recommended_values_leave_nothing_in_float() -> None:
    assert QConfig.recommended().to_dict() == {**DEFAULTS, **RECOMMENDED}
    assert QConfig.recommended(rounding="TONEAREST").rounding == "TONEAREST"


@pytest.mark.parametrize("make", [qconfig, QConfig, QConfig().with_overrides])
def test_an_unknown_key_is_named_with_its_nearest(make: Any) -> None:
    with pytest.raises(TypeError) as caught:
        make(paritition_conversions="enabled")
    assert "paritition_conversions" in str(caught.value)
    assert "did you mean 'partition_conversions'?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("calibrate_mode", "entropy"),
        ("weight_scale", "median"),
        ("rounding", "DOWN"),
        ("nbit_input", 1),
        ("nbit_input", 17),
        ("nbit_input", 9),
        ("nbit_weight", 8.0),
        ("nbit_activation", True),
        ("dtype_input", "uint8"),
        ("dtype_activation", "int64"),
        ("dtype_activation", "int16"),
        ("global_scale", 0.0),
        ("global_scale", float("nan")),
        ("percentile", 1.5),
        ("skip_conv_layers", [-1]),
        ("skip_conv_layers", "0"),
        ("debug_enabled_ops", "nn.conv2d"),
        ("skip_dense_layer", 1),
        ("calibrate_chunk_by", 0),
        ("prerequisite_level", 4),
        ("smooth_alpha", 1.5),
        ("smooth_alpha", True),
        ("weight_rounding", "adaptive"),
        ("partition_conversions", "full"),
        ("weight_granularity", "row"),
        ("layers", {"<tables>": {"nbit_input": 7}}),
        ("layers", {"<tables>": {"nbit_input": 13}}),
        ("layers", {"<sums>": {"nbit_weight": 16}}),
    ],
)
def test_an_illegal_value_is_refused_when_built(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"legal|lower|mean") as caught:
        qconfig(**{name: value})
    assert name in str(caught.value) or "Unknown" in str(caught.value)


def test_the_messages_of_modes_are_relays() -> None:
    with pytest.raises(ValueError, match="Unknown calibrate mode"):
        qconfig(calibrate_mode="entropy")
    with pytest.raises(ValueError, match="Unknown weight scale mode"):
        qconfig(weight_scale="median")


def test_partition_conversions_is_also_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        qconfig(partition_conversions="full")


def test_fields_cannot_be_assigned() -> None:
    config = qconfig()
    with pytest.raises(AttributeError):
        config.nbit_input = 4  # type: ignore[misc]
    with pytest.raises(AttributeError):
        config.other = 4  # type: ignore[attr-defined]


def test_scopes_nest_and_do_not_merge() -> None:
    with qconfig(global_scale=4.0):
        with qconfig(nbit_weight=4) as inner:
            assert inner is current_qconfig()
            assert (inner.global_scale, inner.nbit_weight) == (8.0, 4)
        assert (current_qconfig().global_scale, current_qconfig().nbit_weight) == (4.0, 8)
    assert current_qconfig() == QConfig()


def test_a_thread_started_in_a_scope_sees_the_defaults() -> None:
    seen: list[QConfig] = []
    with qconfig(global_scale=4.0):
        thread = threading.Thread(target=lambda: seen.append(current_qconfig()))
        thread.start()
        thread.join()
    assert seen == [QConfig()]


def test_an_exception_leaves_the_scope() -> None:
    with pytest.raises(RuntimeError), qconfig(global_scale=4.0):
        raise RuntimeError
    assert current_qconfig() == QConfig()


def test_the_guard_lets_listed_operators_pass() -> None:
    def call(name: str) -> Call:
        return Call(Op.get(name), (Var("x"),))

    assert qconfig().guard(call("nn.relu"))
    only = qconfig(debug_enabled_ops=["nn.conv2d"])
    assert not only.guard(call("nn.relu"))
    assert only.guard(call("nn.conv2d"))


def test_bits_and_dtypes_by_kind() -> None:
    config = qconfig(nbit_weight=5)
    assert config.get_nbit_by_kind(QAnnotateKind.WEIGHT) == 5
    assert config.get_dtype_by_kind(QAnnotateKind.ACTIVATION) == "int32"
    assert kind2str(QAnnotateKind.INPUT) == "input"
    with pytest.raises(ValueError, match="kind"):
        config.get_nbit_by_kind(QAnnotateKind.IDENTITY)


def test_a_config_survives_dicts_and_pickles() -> None:
    config = QConfig.recommended(skip_conv_layers=[0, 3], debug_enabled_ops=["add"])
    assert QConfig.from_dict(config.to_dict()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(QConfig.from_dict(config.to_dict())) == hash(config)


def test_the_text_form_overrides_the_recommended_values() -> None:
    config = qconfig_from_text("skip_conv_layers=[0,3], weight_scale=power2,percentile=0.999")
    assert config == QConfig.recommended(
        skip_conv_layers=[0, 3], weight_scale="power2", percentile=0.999
    )
    assert (
        qconfig_from_text("prerequisite_level=none,keep_output_wide=false", QConfig()) == QConfig()
    )
    assert qconfig_from_text("debug_enabled_ops=[nn.conv2d,add]").debug_enabled_ops == [
        "nn.conv2d",
        "add",
    ]


@pytest.mark.parametrize("text", ["nbit_input", "=3", "a=[1", "nbit_input=4,nbit_input=5"])
def test_text_that_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"assignment|brackets|twice"):
        qconfig_from_text(text)


def test_bias_correction_needs_biases_that_can_hold_it() -> None:
    with pytest.raises(ValueError, match="finer biases than bias_mode='weight'"):
        qconfig(weight_rounding="corrected")
    config = qconfig(weight_rounding="corrected", bias_mode="accumulator")
    assert config.needs_channels
    assert qconfig(smooth_alpha=0).needs_channels


def test_calibration_does_not_depend_on_scales_and_bits() -> None:
    base = QConfig.recommended()
    for name, value in [
        ("weight_scale", "power2"),
        ("rounding", "TONEAREST"),
        ("nbit_weight", 4),
        ("calibrate_mode", "max"),
        ("weight_granularity", "tensor"),
        ("percentile", 0.999),
        ("layers", {"conv_0": {"nbit_weight": 4, "nbit_input": 16}}),
    ]:
        assert (
            base.with_overrides(**{name: value}).calibration_fields() == base.calibration_fields()
        )
    for name, value in [
        ("skip_conv_layers", [2]),
        ("smooth_alpha", 0.5),
        ("layers", {"conv_0": {"float": True}}),
    ]:
        changed = base.with_overrides(**{name: value}, partition_conversions="enabled")
        assert changed.calibration_fields() != base.calibration_fields()
