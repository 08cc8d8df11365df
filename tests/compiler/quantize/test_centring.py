"""Centring: the same function, and channels that lie around 0 where layers read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.module import IRModule
from compiler.quantize import (
    Calibration,
    ChannelStats,
    QConfig,
    channel_stats,
    prerequisite_optimize,
)
from compiler.quantize._centring import Centring
from compiler.quantize._rescaling import rescaled
from compiler.quantize.calibration.measurement import LocalData
from compiler.quantize.candidate import mark
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.candidates import assert_same_integers, const
from tests.compiler.quantize.test_rescaled_tensors import Counting
from tests.compiler.quantize.test_smoothing import assert_same_function

C = 4
SHAPE = (1, C, 6, 6)
CENTRED = QConfig.recommended(weight_rounding="corrected", calibrate_mode="mse")


def layer(rng: np.random.Generator, value: Any, size: int = 1) -> Any:
    """A convolution whose results lie beside 0."""
    padding = (size // 2,) * 4
    product = relay.op.nn.conv2d(value, const(rng, C, C, size, size), padding=padding)
    return relay.op.add(product, relay.const(rng.normal(0, 3, (C, 1, 1)).astype(np.float32)))


def network(rng: np.random.Generator) -> IRModule:
    """Layers with biases, sums of their results, and what else reads them."""
    values = [layer(rng, relay.var("x", SHAPE))]
    for _ in range(rng.integers(2, 9)):
        a, b = (values[max(0, len(values) - 1 - rng.integers(3))] for _ in range(2))
        match rng.integers(0, 8):
            case 0 | 1 | 2:
                values.append(layer(rng, a))
            case 3:
                values.append(layer(rng, a, 3))
            case 4 | 5 | 6:
                values.append(relay.op.add(a, b))
            case _:
                values.append(relay.op.nn.relu(a))
    return prepared(layer(rng, values[-1]))


def prepared(result: Any) -> IRModule:
    return prerequisite_optimize(relay.module(result), None, 0)


def batches(rng: np.random.Generator, count: int = 3) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(count)]


def measured(mod: IRModule, data: list[dict[str, Any]]) -> ChannelStats:
    return channel_stats(mod, data, executor=ReferenceExecutor)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_networks_keep_their_function_and_tell_their_ranges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng), batches(rng)

    centred, told = rescaled(mod, CENTRED, measured(mod, data))

    assert_same_function(mod, centred, rng)
    for one, other in zip(told, measured(centred, data).ranges(), strict=True):
        size = max(np.abs(other.largest).max(), 10.0)
        for name in ("low", "high", "mean"):
            np.testing.assert_allclose(
                getattr(one, name), getattr(other, name), atol=1e-5 * size, err_msg=name
            )


def test_what_layers_read_lies_around_0() -> None:
    rng = np.random.default_rng(1)
    first = layer(rng, relay.var("x", SHAPE))
    total = relay.op.add(first, layer(rng, relay.op.nn.relu(layer(rng, first))))
    mod, data = prepared(layer(rng, total)), batches(rng)

    _, (image, once, inner, twice) = rescaled(mod, CENTRED, measured(mod, data))

    assert image.high.max() != pytest.approx(-image.low.min(), rel=1e-6)
    assert np.all(inner.low == 0)  # behind the relu
    for one in (once, twice):
        np.testing.assert_allclose(one.high, -one.low, rtol=1e-6)
        np.testing.assert_allclose(one.largest, one.high)


@pytest.mark.parametrize("size", [1, 3])
def test_what_a_layer_with_padding_reads_stays(size: int) -> None:
    rng = np.random.default_rng(2)
    mod = prepared(layer(rng, layer(rng, relay.var("x", SHAPE)), size))
    centred, _ = rescaled(mod, CENTRED, measured(mod, batches(rng)))
    assert (centred is not mod) == (size == 1)


@pytest.mark.parametrize("name", ["relu", "result", "no bias", "product"])
def test_what_anything_else_reads_stays(name: str) -> None:
    op, rng = relay.op, np.random.default_rng(3)
    value = layer(rng, relay.var("x", SHAPE))
    read = layer(rng, value)
    other = {
        "relu": lambda: op.nn.relu(value),
        "result": lambda: op.reshape(value, newshape=SHAPE),
        "no bias": lambda: op.nn.relu(op.nn.conv2d(value, const(rng, C, C, 1, 1))),
        "product": lambda: op.multiply(value, value),
    }[name]()
    mod = prepared(op.add(op.nn.relu(read), other))
    assert rescaled(mod, CENTRED, measured(mod, batches(rng)))[0] is mod


def test_a_channel_with_a_few_far_values_is_centred_by_its_mean() -> None:
    """Its range may still end in front of them."""
    one = np.eye(C, dtype=np.float32).reshape(C, C, 1, 1)
    x = relay.var("x", SHAPE)
    bias = relay.const(np.full((C, 1, 1), 2, np.float32))
    hidden = relay.op.add(relay.op.nn.conv2d(x, relay.const(one)), bias)
    mod = prepared(relay.op.add(relay.op.nn.conv2d(hidden, relay.const(one)), bias))
    values = np.tile(np.linspace(-1, 1, 36, dtype=np.float32), C).reshape(SHAPE)
    values[0, 0, 0, 0] = 100
    stats = measured(mod, [{"x": values}])
    (_, told) = Centring.of(mod["main"], stats.ranges()).ranges(mod["main"], stats.ranges())
    assert told.mean[0] == pytest.approx(0, abs=1e-5)
    assert told.high[0] > 90
    np.testing.assert_allclose(told.high[1:], 1, rtol=1e-5)
    np.testing.assert_allclose(told.low[1:], -1, rtol=1e-5)


@pytest.mark.parametrize("rounding", ["corrected", "sequential"])
def test_integers_of_a_centred_network_agree_and_err_less(rounding: str) -> None:
    rng = np.random.default_rng(4)
    mod, data = prepared(layer(rng, layer(rng, layer(rng, relay.var("x", SHAPE))))), batches(rng, 8)
    errors = []
    for centred in (False, True):
        config = QConfig.recommended(
            weight_rounding=rounding,
            calibrate_mode="max",
            weight_scale="mse",
            activation_scheme="asymmetric",
        )
        with pytest.MonkeyPatch.context() as patch:
            if not centred:
                patch.setattr(Centring, "of", lambda *_: Centring({}, {}, {}))
            found = Calibration(mod, LocalData(mod, data, ReferenceExecutor)).candidate(config)
        assert_same_integers(found.partitioned, data[:1])
        errors.append(
            np.square(
                ReferenceExecutor(found.simulated).run(data[0])[0]
                - ReferenceExecutor(mod).run(data[0])[0]
            ).mean()
        )
    assert errors[1] < errors[0]


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_centred_statistics_come_from_the_passes_over_the_plain_network(
    alpha: float | None,
) -> None:
    rng = np.random.default_rng(5)
    first = layer(rng, relay.var("x", SHAPE))
    total = relay.op.add(first, layer(rng, relay.op.nn.relu(layer(rng, first))))
    mod, data = prepared(layer(rng, total)), batches(rng)
    counting = Counting(mod, data)
    together = Calibration(mod, counting, variants=({}, {"weight_rounding": "nearest"}))
    config = CENTRED.with_overrides(smooth_alpha=alpha)

    ours = together.stats_for(config)

    assert sorted(counting.read) == ["channels", "histograms", "ranges"]
    theirs = Calibration(
        mod, LocalData(mod, data, ReferenceExecutor), mark=lambda *given: mark(*given)
    ).stats_for(config)
    np.testing.assert_allclose(ours.minimum, theirs.minimum, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.maximum, theirs.maximum, rtol=1e-4, atol=1e-4)
    plain = together.stats_for(config.with_overrides(weight_rounding="nearest", smooth_alpha=None))
    assert not np.allclose(plain.maximum, ours.maximum, rtol=1e-2)
