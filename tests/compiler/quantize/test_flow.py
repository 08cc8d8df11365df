"""The whole flow: prerequisites and levels, overflow, report, integer networks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from compiler import assert_structural_equal, evaluate, parse, relay, text
from compiler.errors import NotFullyIntegralError
from compiler.ir.analysis import extract_calls
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.qtypes.errors import ConfigValueError, IntegerOverflowError
from compiler.quantize import (
    QConfig,
    QuantizeContext,
    build_candidate,
    has_only_conversion_ops,
    prerequisite_optimize,
    qconfig,
    quantize,
)
from compiler.transform import PassContext
from tests.compiler.quantize.candidates import calibrated
from tests.compiler.work import calls_of
from tests.each import each

Graph = Callable[..., IRModule]

BIAS_ADD = """
#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 3, 3), float32],
          %b: Tensor[(4), float32]) {
  %0 = nn.conv2d(%x, %w);
  nn.bias_add(%0, %b, axis=1)
}
"""


@pytest.fixture
def params() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {
        "w": rng.uniform(-0.5, 0.5, (4, 4, 3, 3)).astype(np.float32),
        "b": rng.uniform(-1, 1, (4,)).astype(np.float32),
        "unused": np.zeros(3, np.float32),
    }


def test_bias_add_survives_at_level_two_and_stays_float(params: Any) -> None:
    mod = parse(BIAS_ADD)
    assert "nn.bias_add" in text(prerequisite_optimize(mod, params), show_meta=False)
    with qconfig(skip_conv_layers=[]):
        shown = text(quantize(mod, params), show_types=False, show_meta=False)
    assert shown.index("multiply(%10, 0.0625f)") < shown.index("nn.bias_add")
    assert "annotation.stop_fusion(%8)" in shown
    with qconfig(skip_conv_layers=[], partition_conversions="enabled"):
        cut = quantize(mod, params)
    assert "nn.bias_add" in text(cut, show_meta=False).split("@dequantize_outputs(")[1]
    with (
        qconfig(skip_conv_layers=[], partition_conversions="fully_integral"),
        pytest.raises(NotFullyIntegralError, match=r"nn\.bias_add"),
    ):
        quantize(mod, params)


@pytest.mark.parametrize("how", ["context", "argument", "config"])
def test_at_level_three_bias_add_becomes_an_integer_add(params: Any, how: str) -> None:
    mod = parse(BIAS_ADD)
    config: dict[str, Any] = {"skip_conv_layers": [], "partition_conversions": "fully_integral"}
    if how == "config":
        with qconfig(**config, prerequisite_level=3):
            result = quantize(mod, params)
    elif how == "context":
        with PassContext(opt_level=3), qconfig(**config):
            result = quantize(mod, params)
    else:
        with qconfig(**config):
            result = quantize(prerequisite_optimize(mod, params, 3))
    assert "bias_add" not in text(result, show_meta=False)


def test_two_parameters_of_one_name_are_refused() -> None:
    x = relay.var("w", (2, 2)), relay.var("w", (2, 2))
    mod = infer_module(IRModule.from_expr(relay.Function(x, relay.op.add(*x))))
    with pytest.raises(ValueError, match="Multiple args in the function have name w"):
        prerequisite_optimize(mod, {"w": np.zeros((2, 2), np.float32)})


def test_unbound_parameters_keep_their_order() -> None:
    names = ["a", "b", "c"]
    variables = [relay.var(n, (2,)) for n in names]
    body = relay.op.add(relay.op.add(variables[2], variables[1]), variables[0])
    mod = infer_module(IRModule.from_expr(relay.Function(variables, body)))
    bound = prerequisite_optimize(mod, {"b": np.ones(2, np.float32)})
    assert [p.name_hint for p in bound["main"].params] == ["a", "c"]


def dense(k: int) -> IRModule:
    x = relay.var("x", (1, k))
    weight = relay.const(np.full((1, k), 0.5, np.float32))
    return relay.module(relay.Function([x], relay.op.nn.dense(x, weight)))


@pytest.mark.parametrize(("k", "fits"), [(133_144, True), (133_145, False)])
def test_a_sum_that_could_overflow_is_refused_with_node_and_bound(k: int, fits: bool) -> None:
    with qconfig(skip_dense_layer=False):
        if fits:
            quantize(dense(k))
            return
        with pytest.raises(IntegerOverflowError, match=r"nn\.dense.*2147495705") as caught:
            quantize(dense(k))
    assert isinstance(caught.value, ValueError)
    assert "int32" in str(caught.value)


def test_fewer_bits_allow_longer_sums() -> None:
    with qconfig(skip_dense_layer=False, nbit_weight=4):
        result = quantize(dense(200_000))
    (product,) = extract_calls(result["main"], "nn.dense")
    assert product.checked_type == TensorType((1, 1), "int32")


def test_a_narrow_accumulator_refuses_three_products() -> None:
    config = {"skip_dense_layer": False, "dtype_activation": "int16", "nbit_activation": 16}
    with qconfig(**config):
        quantize(dense(2))
        with pytest.raises(ValueError, match="int16"):
            quantize(dense(3))


def test_the_report_says_what_stays_float_and_why(graph: Graph) -> None:
    rng = np.random.default_rng(6)
    mod = graph(
        """
def @main(%x: (1,2,8,8) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,1,1) float32>);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, const<W1 (2,2,1,1) float32>);
  %3 = sigmoid(%2);
  %4 = nn.conv2d(%3, const<W2 (2,2,1,1) float32>);
  %5 = nn.global_avg_pool2d(%4);
  %6 = nn.batch_flatten(%5);
  %7 = nn.dense(%6, const<D (3,2) float32>);
  %7
}
""",
        **{n: rng.uniform(-1, 1, (2, 2, 1, 1)).astype(np.float32) for n in ("W0", "W1", "W2")},
        D=rng.uniform(-1, 1, (3, 2)).astype(np.float32),
    )
    context = QuantizeContext(QConfig())
    quantize(mod, context=context)
    assert [(r.op, r.conv_index, r.status, r.reason) for r in context.report.calls] == [
        ("nn.conv2d", 0, "float", "skipped_layer"),
        ("nn.relu", None, "float", "operand_float"),
        ("nn.conv2d", 1, "integer", ""),
        ("sigmoid", None, "float", "no_rule:QuantizeAnnotate"),
        ("nn.conv2d", 2, "integer", ""),
        ("nn.global_avg_pool2d", None, "integer", ""),
        ("nn.batch_flatten", None, "integer", ""),
        ("nn.dense", None, "float", "skipped_dense"),
    ]
    guarded = QuantizeContext(QConfig(skip_conv_layers=[], debug_enabled_ops=["nn.conv2d"]))
    quantize(mod, context=guarded)
    assert guarded.report.calls[1].reason in ("", "guard")
    assert guarded.report.calls[-1].reason == "guard"
    assert set(asdict(context.report)) == {"calls", "points", "diagnostics"}


def residual_net(channels: int = 8, seed: int = 7) -> IRModule:
    """Inverted residuals with clip, strided depthwise, concatenation, pooling and classifier."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int, spread: float = 1.0) -> Any:
        fan_in = int(np.prod(shape[1:]))
        values = rng.normal(0, (2 / fan_in) ** 0.5, shape)
        if spread != 1.0:
            values *= np.exp2(rng.uniform(-3, 3, shape[:1]))[(...,) + (None,) * (len(shape) - 1)]
        return relay.const(values.astype(np.float32))

    def bias(*shape: int) -> Any:
        return relay.const(rng.normal(0, 0.3, shape).astype(np.float32))

    def block(x: Any, stride: int) -> Any:
        wide = 3 * channels
        y = relay.op.nn.conv2d(x, weight(wide, channels, 1, 1, spread=6.0))
        y = relay.op.clip(relay.op.add(y, bias(wide, 1, 1)), a_min=0.0, a_max=6.0)
        y = relay.op.nn.conv2d(
            y, weight(wide, 1, 3, 3), padding=(1, 1, 1, 1), strides=(stride, stride), groups=wide
        )
        y = relay.op.clip(relay.op.add(y, bias(wide, 1, 1)), a_min=0.0, a_max=6.0)
        y = relay.op.add(relay.op.nn.conv2d(y, weight(channels, wide, 1, 1)), bias(channels, 1, 1))
        return relay.op.add(y, x) if stride == 1 else y

    x = relay.var("x", (1, 3, 16, 16))
    y = relay.op.nn.conv2d(x, weight(channels, 3, 3, 3), padding=(1, 1, 1, 1))
    y = relay.op.nn.relu(relay.op.add(y, bias(channels, 1, 1)))
    y = block(y, 1)
    y = relay.op.nn.max_pool2d(y, pool_size=(2, 2), strides=(2, 2))
    y = block(block(y, 1), 2)
    z = relay.op.nn.avg_pool2d(y, pool_size=(3, 3), padding=(1, 1, 1, 1))
    y = relay.op.concatenate(relay.Tuple([y, z]), axis=1)
    y = relay.op.nn.conv2d(y, weight(channels, 2 * channels, 1, 1))
    y = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(relay.op.nn.relu(y)))
    y = relay.op.add(relay.op.nn.dense(y, weight(10, channels)), bias(10))
    return prerequisite_optimize(relay.module(relay.Function([x], y)), None, 3)


def batches(count: int, seed: int = 8) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32)} for _ in range(count)]


def sqnr_db(exact: Any, found: Any) -> float:
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


VARIANTS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "max": {"calibrate_mode": "max"},
    "powers of two": {"calibrate_mode": "max", "weight_scale": "power2"},
    "to nearest": {"rounding": "TONEAREST"},
    "per tensor": {"weight_granularity": "tensor"},
    "weight error": {"weight_scale": "mse"},
    "int16": {"dtype_input": "int16", "nbit_input": 12},
}
LEAST_DB = {"per tensor": 12.0, "powers of two": 14.0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_recommended_values_leave_integers_from_end_to_end(variant: str) -> None:
    mod = residual_net()
    config = QConfig.recommended(**VARIANTS[variant])
    candidate = calibrated(mod, config, batches(8))
    assert candidate.report.float_ops == []
    module = candidate.partitioned
    assert module is not None
    assert has_only_conversion_ops(module["quantize_inputs"])
    assert str(module["quantized_main"].checked_type.ret_type) == "Tensor[(1, 10), int32]"
    tests = batches(6, seed=9)
    exact = np.concatenate([evaluate(mod, t)[0] for t in tests])
    found = np.concatenate([evaluate(module, t)[0] for t in tests])
    simulated = np.concatenate([evaluate(candidate.simulated, t)[0] for t in tests])
    assert sqnr_db(exact, found) > LEAST_DB.get(variant, 20.0)
    assert sqnr_db(exact, found) > sqnr_db(exact, simulated) - 1.5


def test_per_channel_scales_beat_one_scale_where_channels_differ() -> None:
    mod = residual_net()
    found = {}
    for granularity in ("tensor", "channel"):
        config = QConfig.recommended(weight_granularity=granularity, calibrate_mode="max")
        candidate = calibrated(mod, config, batches(8))
        outputs = [(evaluate(mod, t)[0], evaluate(candidate.integer, t)[0]) for t in batches(4, 9)]
        found[granularity] = sqnr_db(*(np.concatenate(side) for side in zip(*outputs)))
    assert found["channel"] > found["tensor"] + 2


def test_a_truncating_average_loses_what_a_rounding_one_keeps() -> None:
    x = relay.var("x", (1, 3, 8, 8))
    identity = relay.const(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    y = relay.op.nn.avg_pool2d(
        relay.op.nn.conv2d(x, identity), pool_size=(3, 3), padding=(1, 1, 1, 1)
    )
    mod = relay.module(relay.Function([x], y))
    data = np.random.default_rng(2).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    errors = {}
    for exact in (False, True):
        config = QConfig.recommended(
            avg_pool_round=exact, calibrate_mode="global_scale", global_scale=1.0
        )
        candidate = build_candidate(mod, config, None)
        out = evaluate(candidate.integer, [data])[0]
        errors[exact] = np.abs(out - evaluate(mod, [data])[0]).max()
    # Half a step of the data, and 1/128 for the weight 1.0, which the symmetric grid clips.
    assert errors[True] < 1.5 / 128
    assert errors[True] < errors[False]


def test_two_runs_at_once_share_nothing() -> None:
    mod = residual_net()
    configs = [QConfig(skip_conv_layers=[i], skip_dense_layer=False) for i in range(4)]
    alone = [build_candidate(mod, c, None) for c in configs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda c: build_candidate(mod, c, None), configs))
    for a, b in each(zip(alone, together)):
        assert a.integer is not None
        assert b.integer is not None
        assert_structural_equal(a.integer, b.integer)
        assert asdict(a.report) == asdict(b.report)


def chain_of_convolutions(length: int) -> IRModule:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 4, 6, 6))
    y: Any = x
    for _ in range(length):
        weight = relay.const(rng.normal(0, 0.1, (4, 4, 3, 3)).astype(np.float32))
        bias = relay.const(rng.normal(0, 0.1, (4, 1, 1)).astype(np.float32))
        y = relay.op.add(relay.op.nn.conv2d(y, weight, padding=(1, 1, 1, 1)), bias)
        y = relay.op.clip(y, a_min=0.0, a_max=6.0)
    return infer_module(IRModule.from_expr(relay.Function([x], y)))


def test_the_work_of_a_trial_grows_with_the_number_of_convolutions() -> None:
    config = QConfig.recommended(calibrate_mode="global_scale")
    calls = {}
    for length in (10, 50):
        mod = chain_of_convolutions(length)
        build_candidate(mod, config, None)
        calls[length] = calls_of(lambda mod=mod: build_candidate(mod, config, None))  # type: ignore[misc]
    assert calls[50] < 6 * calls[10]
    assert calls[50] < 50 * 40_000


@pytest.mark.shared
@pytest.mark.parametrize("name", ["digits_cnn", "fashion_mobilenet", "fashion_resnet"])
def test_the_models_of_shared_data_become_fully_integral(name: str, shared_data: Any) -> None:
    from compiler.frontend.from_onnx.load import load

    mod, params = load(str(shared_data / f"{name}.onnx"), dims={"N": 1})
    mod = prerequisite_optimize(mod, params, 3)
    group = name.split("_")[0]
    calib, dev = (np.load(shared_data / f"{group}_{part}.npz") for part in ("calib", "dev"))

    def images(part: Any, count: int) -> Any:
        pixels = part["images"][:count, None].astype(np.float32)
        return pixels / 16 if group == "digits" else pixels / 127.5 - 1

    config = QConfig.recommended()
    candidate = calibrated(mod, config, [{"input": x[None]} for x in images(calib, 64)])
    assert candidate.report.float_ops == []
    assert candidate.partitioned is not None
    tests = images(dev, 60)
    exact = np.concatenate([evaluate(mod, [x[None]])[0] for x in tests])
    found = np.concatenate([evaluate(candidate.partitioned, [x[None]])[0] for x in tests])
    assert (exact.argmax(1) == found.argmax(1)).mean() >= 0.95
    assert sqnr_db(exact, found) > 20


CLASSIFIER = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32],
          %b: Tensor[(4), float32], %d: Tensor[(5, 4), float32]) {
  %0 = nn.conv2d(%x, %w);
  %1 = nn.relu(nn.bias_add(%0, %b));
  nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%1)), %d)
}
"""
IN_THE_WAY = ("prerequisite_level", "skip_conv_layers", "skip_dense", "stop_after_global_pool")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, IN_THE_WAY),
        ({"skip_conv_layers": [], "skip_dense_layer": False}, (IN_THE_WAY[0], IN_THE_WAY[3])),
        ({"prerequisite_level": 3, "stop_after_global_pool": False}, IN_THE_WAY[1:3]),
    ],
    ids=str,
)
def test_what_keeps_operators_in_float_under_relays_defaults_is_named(
    given: dict[str, Any], named: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(0)
    mod = infer_module(parse(CLASSIFIER))
    shapes = {p.name_hint: p.tensor_type.concrete_shape for p in mod["main"].params}
    params = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items() if n != "x"}
    config = QConfig(partition_conversions="fully_integral", **given)
    warned = (
        pytest.warns(UserWarning, match="skip_conv_layers")
        if config.skip_conv_layers
        else nullcontext()
    )
    with warned, pytest.raises(NotFullyIntegralError) as caught:
        quantize(mod, params, qconfig=config)
    told = str(caught.value)
    assert tuple(name for name in IN_THE_WAY if name in told) == named
    assert ("PassContext(opt_level=3)" in told) == (IN_THE_WAY[0] in named)


def test_a_simulation_is_never_fully_integral() -> None:
    with pytest.raises(ConfigValueError, match="cannot be fully_integral"):
        QConfig(do_simulation=True, partition_conversions="fully_integral")


def test_a_simulation_is_partitioned_and_computes_the_same(params: Any) -> None:
    config = QConfig(do_simulation=True, skip_conv_layers=[])
    parts = config.with_overrides(partition_conversions="enabled")
    plain, cut = (quantize(parse(BIAS_ADD), params, qconfig=one) for one in (config, parts))
    assert "@quantize_inputs(" in text(cut)
    x = np.random.default_rng(5).normal(size=(1, 4, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(cut, [x])[0], evaluate(plain, [x])[0])
