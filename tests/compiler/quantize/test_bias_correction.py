"""Channel statistics and what bias correction makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.errors import CalibrationError
from compiler.ir.module import IRModule
from compiler.quantize import (
    Calibration,
    ChannelStats,
    QConfig,
    QuantizeContext,
    channel_stats,
    mark,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize.weighted_calls import weighted_calls
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.candidates import calibrated

SHAPE = (1, 4, 9, 9)


def const(rng: np.random.Generator, *shape: int) -> Any:
    return relay.const(rng.normal(0, 0.4, shape).astype(np.float32))


def network(rng: np.random.Generator, last_bias: bool = True) -> IRModule:
    """Strides, padding, dilation, groups and a dense layer."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", SHAPE)
    a = nn.conv2d(x, const(rng, 6, 4, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2))
    a = nn.relu(op.add(a, const(rng, 6, 1, 1)))
    b = nn.conv2d(a, const(rng, 6, 1, 3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=6)
    b = nn.relu(op.add(b, const(rng, 6, 1, 1)))
    c = nn.conv2d(b, const(rng, 8, 3, 1, 1), groups=2)
    c = op.add(c, const(rng, 8, 1, 1)) if last_bias else c
    pooled = nn.batch_flatten(nn.global_avg_pool2d(nn.relu(c)))
    result = op.add(nn.dense(pooled, const(rng, 5, 8)), const(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def batches(rng: np.random.Generator, count: int = 24) -> list[dict[str, Any]]:
    """Every channel has a mean and a range of its own."""
    offset = rng.normal(0, 2, (1, SHAPE[1], 1, 1))
    return [{"x": (rng.normal(0, 1, SHAPE) + offset).astype(np.float32)} for _ in range(count)]


def stats(mod: IRModule, data: list[dict[str, Any]]) -> ChannelStats:
    return channel_stats(mod, data, executor=ReferenceExecutor)


def simulated(mod: IRModule, data: list[dict[str, Any]], config: QConfig) -> IRModule:
    channels = stats(mod, data) if config.needs_channels else None
    return calibrated(mod, config, data, channels, executor=ReferenceExecutor).simulated


def mean_output_error(mod: IRModule, data: list[dict[str, Any]], config: QConfig) -> float:
    changed = simulated(mod, data, config)
    errors = [evaluate(changed, x)[0] - evaluate(mod, x)[0] for x in data]
    return float(np.abs(np.mean(errors, axis=0)).mean())


@pytest.mark.parametrize("seed", range(4))
def test_correction_takes_most_of_the_mean_error_away(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng), batches(rng)
    plain = QConfig.recommended(nbit_weight=4, calibrate_mode="max")
    corrected = plain.with_overrides(weight_rounding="corrected")
    before = mean_output_error(mod, data, plain)
    assert mean_output_error(mod, data, corrected) < 0.6 * before


def test_the_mean_response_is_that_of_the_operator_itself() -> None:
    rng = np.random.default_rng(7)
    mod = network(rng)
    calls = weighted_calls(mod["main"])
    assert [call.op.name for call, _ in calls] == ["nn.conv2d"] * 3 + ["nn.dense"]
    for call, response in calls:
        data_type = call.args[0].tensor_type
        channels = data_type.shape[response.data_axis]
        means = rng.normal(0, 1, channels)
        x = relay.var("x", data_type.shape)
        one = prerequisite_optimize(
            relay.module(relay.Function([x], call.with_fields(args=(x, call.args[1])))), None, 0
        )
        shape = [1] * len(data_type.shape)
        shape[response.data_axis] = channels
        flat = np.broadcast_to(means.reshape(shape), data_type.shape).astype(np.float32)
        (out,) = evaluate(one, {"x": flat})
        axes = tuple(k for k in range(out.ndim) if k != 1)
        found = response.respond(call.args[1].data, means)
        np.testing.assert_allclose(found, out.mean(axis=axes), rtol=1e-4, atol=1e-5)


def test_a_product_without_a_bias_is_left_alone() -> None:
    rng = np.random.default_rng(8)
    mod, data = network(rng, last_bias=False), batches(rng, 4)
    assert np.isfinite(
        mean_output_error(
            mod, data, QConfig.recommended(weight_rounding="corrected", nbit_weight=4)
        )
    )


def test_shards_in_any_order_give_the_same_bits() -> None:
    rng = np.random.default_rng(9)
    mod, data = network(rng), batches(rng, 7)
    whole = stats(mod, data)
    parts = [stats(mod, data[a:b]) for a, b in ((5, 7), (0, 2), (2, 5))]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    back = ChannelStats.from_arrays(merged.to_arrays())
    for name, array in whole.to_arrays().items():
        np.testing.assert_array_equal(back.to_arrays()[name], array, err_msg=name)
    x = np.concatenate([row["x"] for row in data]).astype(np.float64)
    first = whole.ranges()[0]
    np.testing.assert_array_equal(first.largest, np.abs(x).max(axis=(0, 2, 3)))
    np.testing.assert_allclose(first.mean, x.mean(axis=(0, 2, 3)), atol=1e-6)


def test_onnxruntime_measures_the_same_channels() -> None:
    rng = np.random.default_rng(10)
    mod, data = network(rng), batches(rng, 3)
    by_ort, by_numpy = channel_stats(mod, data), stats(mod, data)
    # The two sum convolutions in another order.
    np.testing.assert_allclose(by_ort.low, by_numpy.low, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_ort.high, by_numpy.high, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_ort.total, by_numpy.total, rtol=1e-4, atol=2**14)


@pytest.mark.parametrize("field", [{"smooth_alpha": 0.5}, {"weight_rounding": "corrected"}])
def test_missing_statistics_are_asked_for(field: dict[str, Any]) -> None:
    rng = np.random.default_rng(11)
    mod = network(rng)
    config = QConfig.recommended(**field)
    with pytest.raises(CalibrationError, match="need statistics of single channels"):
        mark(mod, config)
    with config, pytest.raises(CalibrationError, match="need a dataset"):
        quantize(mod)
    x = relay.var("x", SHAPE)
    other = relay.module(relay.Function([x], relay.op.nn.conv2d(x, const(rng, 2, 4, 1, 1))))
    foreign = stats(prerequisite_optimize(other, None, 3), batches(rng, 1))
    with pytest.raises(CalibrationError, match="of 1 operators were given for a module with 4"):
        mark(mod, config, foreign)


def test_a_module_without_weights_has_no_channels_to_measure() -> None:
    x = relay.var("x", SHAPE)
    mod = prerequisite_optimize(relay.module(relay.Function([x], relay.op.nn.relu(x))), None, 3)
    with pytest.raises(CalibrationError, match="no channels to measure"):
        channel_stats(mod, [])


def test_foreign_and_empty_statistics_are_refused() -> None:
    rng = np.random.default_rng(12)
    mod = network(rng)
    with pytest.raises(CalibrationError, match="the dataset is empty"):
        channel_stats(mod, [])
    with pytest.raises(CalibrationError, match="'labels' is missing"):
        ChannelStats.from_arrays({"hist": np.zeros(3)})
    bad = [{"x": np.full(SHAPE, np.nan, np.float32)}]
    with pytest.raises(CalibrationError, match="NaN or infinity"):
        stats(mod, bad)


@pytest.mark.parametrize(
    "fields",
    [
        {"smooth_alpha": 0.5},
        {"weight_rounding": "corrected"},
        {"smooth_alpha": 1.0, "weight_rounding": "corrected", "nbit_weight": 5},
    ],
)
def test_the_whole_flow_and_a_candidate_are_the_same_integers(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(13)
    mod, data = network(rng), batches(rng, 4)
    config = QConfig.recommended(**fields)
    run = QuantizeContext(config)
    whole = quantize(mod, None, data, context=run)
    candidate = Calibration(mod, data).candidate(config)
    assert candidate.partitioned is not None
    for x in data:
        one, other = evaluate(whole, x), evaluate(candidate.partitioned, x)
        np.testing.assert_array_equal(one[0], other[0])
        (close,) = evaluate(mod, x)
        assert np.abs(one[0] - close).max() <= 0.2 * np.abs(close).max()
