"""Factors through concatenations: the same function, and evener channels of what is joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import (
    Calibration,
    QConfig,
    channel_stats,
    equalize,
    free_rescalings,
    prerequisite_optimize,
    smooth,
)
from compiler.quantize._channel_groups import find_groups
from compiler.quantize.calibration.rescaled_tensors import rescaled_tensors
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.test_equalization import SHAPE, C, assert_same_function, vector, weight
from tests.compiler.quantize.test_rescaled_tensors import (
    Counting,
    batches,
    powers_of_two,
    profile,
)

op, nn = relay.op, relay.op.nn


def conv(rng: np.random.Generator, data: Any, channels: int, out: int) -> Any:
    return nn.conv2d(data, weight(rng, out, channels, 1, 1))


def step(rng: np.random.Generator, values: list[tuple[Any, int]]) -> tuple[Any, int]:
    """One more value of 6 by 6, and its channels."""
    a, channels = values[max(0, len(values) - 1 - rng.integers(4))]
    match rng.integers(0, 16):
        case 0 | 1 | 2:
            out = int(rng.integers(1, 5))
            return conv(rng, a, channels, out), out
        case 3 | 4:
            kernel = weight(rng, channels, 1, 3, 3)
            return nn.conv2d(a, kernel, padding=(1, 1, 1, 1), groups=channels), channels
        case 5 | 6:
            return nn.relu(a), channels
        case 7:
            return op.add(a, vector(rng, channels, 1, 1)), channels
        case 8:
            return op.multiply(a, vector(rng, channels, 1, 1)), channels
        case 9 | 10:
            alike = [b for b, size in values if size == channels]
            return op.add(a, alike[rng.integers(len(alike))]), channels
        case 11:
            return op.clip(a, a_min=0.0, a_max=40.0 if rng.random() < 0.1 else np.inf), channels
        case 12:
            return nn.max_pool2d(a, pool_size=(3, 3), padding=(1, 1, 1, 1)), channels
        case _:
            fields = [values[k] for k in rng.integers(len(values), size=rng.integers(1, 4))]
            total = sum(size for _, size in fields)
            if rng.random() < 0.2:
                moved = [op.transpose(field, axes=(0, 2, 3, 1)) for field, _ in fields]
                return op.transpose(op.concatenate(moved, axis=-1), axes=(0, 3, 1, 2)), total
            return op.concatenate([field for field, _ in fields], axis=1), total


def network(rng: np.random.Generator) -> IRModule:
    """With concatenations of values, of concatenations, of a value with itself, sums of them."""
    x = relay.var("x", SHAPE)
    values = [(conv(rng, x, C, size), size) for size in (C, 3)]
    if rng.random() < 0.1:
        values.append((x, C))
    for _ in range(rng.integers(3, 16)):
        values.append(step(rng, values))
    last = values[-1]
    for value in values[-4:-1]:
        last = (op.concatenate((last[0], value[0]), axis=1), last[1] + value[1])
    flat = nn.batch_flatten(nn.global_avg_pool2d(last[0]))
    result = op.add(nn.dense(flat, weight(rng, 5, last[1])), vector(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_any_factors_keep_the_function_of_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    groups = find_groups(mod["main"], through_concat=True)
    factors = [np.exp2(rng.uniform(-3, 3, size)) for size in groups.sizes]

    assert_same_function(mod, groups.rescaled(mod, factors), rng)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0]))
def test_smoothing_and_equalization_keep_the_function(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    data = batches(rng, 2)
    ranges = channel_stats(mod, data, executor=ReferenceExecutor).ranges()

    smoothed, told = smooth(mod, ranges, alpha, through_concat=True)

    assert_same_function(mod, smoothed, rng)
    assert_same_function(mod, equalize(mod, through_concat=True), rng)
    measured = channel_stats(smoothed, data, executor=ReferenceExecutor).ranges()
    for one, other in zip(told, measured, strict=True):
        limit = 1e-3 * max(one.largest.max(), 1e-3)
        np.testing.assert_allclose(one.low, other.low, rtol=1e-2, atol=limit)
        np.testing.assert_allclose(one.high, other.high, rtol=1e-2, atol=limit)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_with_powers_of_two_every_value_is_that_of_the_rescaled_network(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    groups = find_groups(mod["main"], through_concat=True)
    plain = profile(mod)
    rescaled = profile(groups.rescaled(mod, powers_of_two(groups)))

    found = rescaled_tensors(plain, rescaled, [powers_of_two], [], through_concat=True)

    assert found is not None
    (data,) = batches(rng, 1)
    _, *own = ReferenceExecutor(plain).run(data)
    _, *theirs = ReferenceExecutor(rescaled).run(data)
    for each, expected in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(each.of(own), expected)


def joined(rng: np.random.Generator, *fields: Any, readers: int = 1) -> IRModule:
    """What layers read that read a concatenation of ``fields`` of ``C`` channels."""
    value = op.concatenate(fields, axis=1)
    read = [conv(rng, value, C * len(fields), 2) for _ in range(readers)]
    body = read[0] if readers == 1 else op.add(*read)
    return infer_module(relay.module(body))


def layer(rng: np.random.Generator) -> Any:
    return nn.relu(conv(rng, relay.var("x", SHAPE), C, C))


def sizes(mod: IRModule) -> tuple[int, ...]:
    return find_groups(mod["main"], through_concat=True).sizes


def test_smoothing_with_alpha_one_evens_out_all_channels_of_a_concatenation() -> None:
    rng = np.random.default_rng(2)
    x = relay.var("x", SHAPE)
    fields = [nn.relu(conv(rng, x, C, C)) for _ in range(2)]
    mod = joined(rng, *fields)
    data = batches(rng, 4)
    ranges = channel_stats(mod, data, executor=ReferenceExecutor).ranges()
    assert ranges[-1].largest.max() > 4 * ranges[-1].largest.min()

    unchanged, _ = smooth(mod, ranges, 1.0)
    smoothed, told = smooth(mod, ranges, 1.0, through_concat=True)

    assert unchanged is mod
    np.testing.assert_allclose(told[-1].largest, told[-1].largest[0].repeat(2 * C), rtol=1e-6)
    assert_same_function(mod, smoothed, rng)
    assert "through_concat" in free_rescalings(mod, large=False)


def test_a_value_in_two_places_has_one_set_of_factors() -> None:
    rng = np.random.default_rng(3)
    field = layer(rng)
    mod = joined(rng, field, field)
    assert sizes(mod) == (C,)
    ranges = channel_stats(mod, batches(rng), executor=ReferenceExecutor).ranges()
    smoothed, told = smooth(mod, ranges, 1.0, through_concat=True)
    np.testing.assert_allclose(told[-1].largest, told[-1].largest[0].repeat(2 * C), rtol=1e-6)
    assert_same_function(mod, smoothed, rng)


def test_a_concatenation_of_a_concatenation_is_one_group() -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", SHAPE)
    one, two, three = (nn.relu(conv(rng, x, C, C)) for _ in range(3))
    inner = nn.relu(op.concatenate((one, two), axis=1))
    outer = op.concatenate((inner, three), axis=1)
    sides = conv(rng, outer, 3 * C, 2), conv(rng, inner, 2 * C, 2), conv(rng, three, C, 2)
    mod = infer_module(relay.module(op.add(op.add(*sides[:2]), sides[2])))
    assert sizes(mod) == (3 * C,)
    ranges = channel_stats(mod, batches(rng), executor=ReferenceExecutor).ranges()
    smoothed, told = smooth(mod, ranges, 1.0, through_concat=True)
    for one in told[3:]:
        np.testing.assert_allclose(one.largest, told[3].largest[0].repeat(len(one.low)), rtol=1e-6)
    assert_same_function(mod, smoothed, rng)


def input_field(rng: np.random.Generator) -> IRModule:
    x = relay.var("x", SHAPE)
    return joined(rng, nn.relu(conv(rng, x, C, C)), x)


def constant_field(rng: np.random.Generator) -> IRModule:
    return joined(rng, layer(rng), relay.const(np.ones(SHAPE, np.float32)))


def clipped_field(rng: np.random.Generator) -> IRModule:
    x = relay.var("x", SHAPE)
    limited = op.clip(conv(rng, x, C, C), a_min=0.0, a_max=6.0)
    return joined(rng, nn.relu(conv(rng, x, C, C)), limited)


def read_elsewhere(rng: np.random.Generator) -> IRModule:
    field = layer(rng)
    value = conv(rng, op.concatenate((field, field), axis=1), 2 * C, C)
    return infer_module(relay.module(op.add(value, op.sigmoid(field))))


def result_too(rng: np.random.Generator) -> IRModule:
    field = layer(rng)
    value = conv(rng, op.concatenate((field, field), axis=1), 2 * C, C)
    return infer_module(relay.module(relay.Tuple([value, field])))


def rows(rng: np.random.Generator) -> IRModule:
    field = layer(rng)
    return infer_module(relay.module(conv(rng, op.concatenate((field, field), axis=2), C, C)))


def other_sizes(rng: np.random.Generator) -> IRModule:
    x = relay.var("x", SHAPE)
    one, two, three = (nn.relu(conv(rng, x, C, size)) for size in (1, 2, 3))
    sums = op.add(*(op.concatenate(each, axis=1) for each in ((one, three), (two, two))))
    return infer_module(relay.module(conv(rng, sums, C, 2)))


@pytest.mark.parametrize(
    "build",
    [
        input_field,
        constant_field,
        clipped_field,
        read_elsewhere,
        result_too,
        rows,
        other_sizes,
    ],
)
def test_a_concatenation_is_left_where_one_field_takes_no_factors(build: Any) -> None:
    rng = np.random.default_rng(5)
    mod = build(rng)
    assert sizes(mod) == ()
    assert equalize(mod, through_concat=True) is mod
    assert "through_concat" not in free_rescalings(mod, large=False)


def test_one_tuple_concatenated_twice_is_one_group() -> None:
    rng = np.random.default_rng(6)
    x = relay.var("x", SHAPE)
    fields = relay.Tuple([nn.relu(conv(rng, x, C, C)) for _ in range(2)])
    both = [conv(rng, op.concatenate(fields, axis=axis), 2 * C, C) for axis in (1, -3)]
    mod = infer_module(relay.module(op.add(*both)))
    assert sizes(mod) == (2 * C,)
    assert_same_function(mod, equalize(mod, through_concat=True), rng)


def test_one_calibration_serves_networks_with_and_without_factors_through_concatenations() -> None:
    rng = np.random.default_rng(7)
    x = relay.var("x", SHAPE)
    mod = joined(rng, *(nn.relu(conv(rng, x, C, C)) for _ in range(2)), readers=2)
    data = batches(rng)
    counting = Counting(mod, data)
    config = QConfig.recommended(calibrate_mode="mse", smooth_alpha=1.0)
    variants = [{"smooth_alpha": 1.0, "through_concat": each} for each in (False, True)]
    calibration = Calibration(mod, counting, variants=variants)
    scales = [calibration.scales_for(config.with_overrides(**each)) for each in variants]
    assert sorted(counting.read) == ["channels", "histograms", "ranges"]
    assert len(set(scales)) == 2
    names = [config.with_overrides(**each).calibration_fields() for each in variants]
    assert names[1] == {**names[0], "through_concat": True}
    assert calibration.choose()[0].through_concat
    chosen, _ = Calibration(mod, data * 16).choose()
    assert chosen.through_concat
    assert chosen.smooth_alpha is not None


@pytest.mark.parametrize("nested", [True, False])
def test_long_chains_of_concatenations_are_walked_without_recursion(nested: bool) -> None:
    rng = np.random.default_rng(8)
    x = relay.var("x", (1, 1, 1, 1))
    value = field = nn.conv2d(x, weight(rng, 1, 1, 1, 1))
    length = 5_000
    for k in range(length):
        pair = (value, field) if nested else (field, field)
        value = op.concatenate(pair, axis=1)
        if not nested and k:
            value = nn.conv2d(value, weight(rng, 1, 2, 1, 1))
            field = value
    channels = length + 1 if nested else 1
    mod = infer_module(relay.module(nn.conv2d(value, weight(rng, 2, channels, 1, 1))))
    groups = find_groups(mod["main"], through_concat=True)
    assert sum(groups.sizes) == (1 if nested else length)
    last = groups.channels(mod["main"].body.args[0])
    assert last is not None
    assert len(last.places) == channels
    assert len(set(last.places.tolist())) == 1
