"""Smoothing on random networks: the same function, evener ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.quantize import (
    channel_stats,
    fields_without_effect,
    prerequisite_optimize,
    smooth,
)
from compiler.quantize.smoothing.channel_groups import find_groups
from compiler.targets.reference.executor import ReferenceExecutor
from tests.each import each

C = 4
SHAPE = (1, C, 6, 6)


def weight(rng: np.random.Generator, *shape: int) -> Any:
    """Channels on both sides as far apart as 2^8."""
    values = rng.normal(0, 0.5, shape) * np.exp2(
        rng.uniform(-4, 4, (shape[0], *(1,) * (len(shape) - 1)))
    )
    return relay.const(values.astype(np.float32))


def vector(rng: np.random.Generator, *shape: int) -> Any:
    return relay.const(rng.normal(0, 1, shape).astype(np.float32))


def step(rng: np.random.Generator, values: list[Any]) -> Any:
    """One more value of SHAPE."""
    op, nn = relay.op, relay.op.nn
    a, b = (values[max(0, len(values) - 1 - rng.integers(3))] for _ in range(2))
    match rng.integers(0, 17):
        case 0 | 1 | 2:
            return nn.conv2d(a, weight(rng, C, C, 3, 3), padding=(1, 1, 1, 1))
        case 3 | 4:
            kernel = weight(rng, C, 1, 3, 3)
            return nn.conv2d(a, kernel, padding=(1, 1, 1, 1), groups=C)
        case 5:
            return nn.conv2d(a, weight(rng, C, C // 2, 1, 1), groups=2)
        case 6 | 7:
            return nn.relu(a)
        case 8:
            return nn.leaky_relu(a, alpha=0.1)
        case 9:
            return op.add(a, b)
        case 10:
            return op.add(*((a, vector(rng, C, 1, 1)) if rng.random() < 0.7 else (vector(rng), a)))
        case 11:
            return op.multiply(a, vector(rng, C, 1, 1))
        case 12:
            return op.clip(a, a_min=0.0, a_max=float("inf") if rng.random() < 0.5 else 6.0)
        case 13:
            pool = nn.max_pool2d if rng.random() < 0.5 else nn.avg_pool2d
            return pool(a, pool_size=(3, 3), padding=(1, 1, 1, 1))
        case 14:
            moved = op.transpose(a, axes=(0, 2, 3, 1))
            return op.transpose(op.add(moved, vector(rng, C)), axes=(0, 3, 1, 2))
        case 15:
            gate = op.sigmoid(b if rng.random() < 0.5 else nn.global_avg_pool2d(b))
            return op.multiply(*((a, gate) if rng.random() < 0.5 else (gate, a)))
        case _:
            flat = op.reshape(a, newshape=(1, C, 36))
            return op.reshape(op.subtract(flat, vector(rng, C, 1)), newshape=SHAPE)


def network(rng: np.random.Generator) -> IRModule:
    x = relay.var("x", SHAPE)
    values: list[Any] = [relay.op.nn.conv2d(x, weight(rng, C, C, 1, 1))]
    for _ in range(rng.integers(3, 14)):
        values.append(step(rng, values))
    pooled = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(values[-1]))
    result = relay.op.add(relay.op.nn.dense(pooled, weight(rng, 5, C)), vector(rng, 5))
    mod = relay.module(relay.Function([x], result))
    return prerequisite_optimize(mod, None, 0)


def assert_same_function(
    a: IRModule, b: IRModule, rng: np.random.Generator, inputs: dict[str, Any] | None = None
) -> None:
    inputs = inputs or {"x": rng.normal(0, 1, SHAPE).astype(np.float32)}
    wide = [
        ReferenceExecutor(as_float64(mod)).run({"x": inputs["x"].astype(np.float64)})[0]
        for mod in (a, b)
    ]
    # Constants round to float32, 2^-24 each; cancellation in random weights enlarges that.
    scale = max(np.abs(wide[0]).max(), 1e-3)
    assert np.abs(wide[0] - wide[1]).max() <= 1e-4 * scale + 1e-5 * _magnitude(a, inputs)


def _magnitude(mod: IRModule, inputs: dict[str, Any]) -> float:
    """Largest value anywhere inside: what rounding errors are relative to."""
    seen: list[float] = []

    def tap(_: Expr, value: Any) -> None:
        seen.extend(float(np.abs(one).max()) for one in tensors(value))

    evaluate(mod, inputs, tap=tap)
    return max(seen, default=0.0)


def tensors(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def as_float64(mod: IRModule) -> IRModule:
    """The same constants in float64 arithmetic."""
    x = relay.var("x", SHAPE, dtype="float64")
    done: dict[Expr, Expr] = {mod["main"].params[0]: x}
    for node in post_order(mod["main"].body):
        if isinstance(node, Constant):
            done[node] = Constant(node.data.astype(np.float64))
        elif node not in done:
            done[node] = with_operands(node, [done[child] for child in node.operands()])
    return infer_module(IRModule.from_expr(Function((x,), done[mod["main"].body])))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_smoothing_keeps_the_function_of_random_networks(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    batches = [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(2)]
    ranges = channel_stats(mod, batches, executor=ReferenceExecutor).ranges()

    smoothed, told = smooth(mod, ranges, alpha)

    assert_same_function(mod, smoothed, rng)
    measured = channel_stats(smoothed, batches, executor=ReferenceExecutor).ranges()
    for one, other, plain in zip(told, measured, ranges, strict=True):
        limit = 1e-3 * max(one.largest.max(), 1e-3)
        np.testing.assert_allclose(one.largest, other.largest, rtol=1e-2, atol=limit)
        counted = np.maximum(other.largest, plain.largest) < 2**20  # larger means are held there
        np.testing.assert_allclose(one.mean[counted], other.mean[counted], rtol=1e-2, atol=limit)


def smoothed(mod: IRModule) -> IRModule:
    rng = np.random.default_rng(7)
    batches = [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(2)]
    ranges = channel_stats(mod, batches, executor=ReferenceExecutor).ranges()
    return smooth(mod, ranges, 0.5)[0]


def chain(rng: np.random.Generator, **between: Any) -> IRModule:
    x = relay.var("x", SHAPE)
    first = relay.op.nn.conv2d(x, weight(rng, C, C, 1, 1))
    middle = relay.op.add(first, vector(rng, C, 1, 1))
    middle = relay.op.clip(middle, **between) if between else relay.op.nn.relu(middle)
    body = relay.op.nn.conv2d(middle, weight(rng, 2, C, 1, 1))
    return prerequisite_optimize(relay.module(relay.Function([x], body)), None, 3)


def weights(mod: IRModule) -> list[np.ndarray]:
    found = [node for node in post_order(mod["main"].body) if is_op_call(node, "nn.conv2d")]
    return [call.args[1].data for call in found if isinstance(call, Call)]


def test_smoothing_with_alpha_one_evens_out_the_activation() -> None:
    rng = np.random.default_rng(2)
    mod = chain(rng)
    batches = [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(4)]
    ranges = channel_stats(mod, batches, executor=ReferenceExecutor).ranges()
    assert ranges[1].largest.max() > 4 * ranges[1].largest.min()

    _, told = smooth(mod, ranges, 1.0)

    np.testing.assert_allclose(told[1].largest, told[1].largest[0].repeat(C), rtol=1e-6)


def test_a_clip_that_does_not_commute_with_factors_stops_them() -> None:
    mod = chain(np.random.default_rng(3), a_min=0.0, a_max=6.0)
    assert smoothed(mod) is mod
    assert fields_without_effect(mod) == {"smooth_alpha"}
    relu = chain(np.random.default_rng(3), a_min=0.0, a_max=float("inf"))
    assert smoothed(relu) is not relu
    assert fields_without_effect(relu) == frozenset()


def test_inputs_and_results_keep_their_units() -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", SHAPE)
    inner = relay.op.nn.relu(relay.op.nn.conv2d(x, weight(rng, C, C, 1, 1)))
    outer = relay.op.nn.conv2d(inner, weight(rng, C, C, 1, 1))
    mod = prerequisite_optimize(
        relay.module(relay.Function([x], relay.Tuple([inner, outer]))), None, 3
    )
    assert find_groups(mod["main"]).sizes == ()
    assert smoothed(mod) is mod
    assert fields_without_effect(mod) == {"smooth_alpha"}


def test_a_residual_stream_is_one_group() -> None:
    rng = np.random.default_rng(5)
    x = relay.var("x", SHAPE)
    value = relay.op.nn.conv2d(x, weight(rng, C, C, 1, 1))
    for _ in range(3):
        branch = relay.op.nn.relu(relay.op.nn.conv2d(value, weight(rng, 8, C, 1, 1)))
        value = relay.op.add(value, relay.op.nn.conv2d(branch, weight(rng, C, 8, 1, 1)))
    result = relay.op.nn.conv2d(value, weight(rng, 2, C, 1, 1))
    mod = prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)
    assert sorted(find_groups(mod["main"]).sizes) == [4, 8, 8, 8]
    assert_same_function(mod, smoothed(mod), rng)


@pytest.mark.parametrize("turned", [False, True])
def test_factors_pass_beside_a_gate(turned: bool) -> None:
    op, nn, rng = relay.op, relay.op.nn, np.random.default_rng(0)
    x = relay.var("x", SHAPE)
    data = nn.conv2d(x, weight(rng, C, C, 1, 1))
    gate = op.sigmoid(nn.conv2d(nn.global_avg_pool2d(data), weight(rng, C, C, 1, 1)))
    gated = op.multiply(*((gate, data) if turned else (data, gate)))
    result = nn.conv2d(gated, weight(rng, C, C, 1, 1))
    mod = prerequisite_optimize(relay.module(relay.Function([x], result)), None, 0)
    (product,) = (node for node in post_order(mod["main"]) if is_op_call(node, "multiply"))
    groups = find_groups(mod["main"]).group_of
    assert groups[product] == groups[product.operands()[1 + turned]]


def test_dead_channels_and_zero_weights_change_nothing() -> None:
    x = relay.var("x", SHAPE)
    kernel = np.zeros((C, C, 1, 1), np.float32)
    kernel[0, 0] = 1
    first = relay.op.nn.relu(relay.op.nn.conv2d(x, relay.const(kernel)))
    body = relay.op.nn.conv2d(first, relay.const(np.zeros((2, C, 1, 1), np.float32)))
    mod = prerequisite_optimize(relay.module(relay.Function([x], body)), None, 3)
    ranges = channel_stats(
        mod, [{"x": np.zeros(SHAPE, np.float32)}], executor=ReferenceExecutor
    ).ranges()
    for changed in each(weights(smooth(mod, ranges, 0.5)[0])):
        assert np.isfinite(changed).all()


@pytest.mark.parametrize("length", [3_000])
def test_long_chains_are_walked_without_recursion(length: int) -> None:
    rng = np.random.default_rng(6)
    x = relay.var("x", (1, 2, 1, 1))
    value = relay.op.nn.conv2d(x, weight(rng, 2, 2, 1, 1))
    for _ in range(length):
        value = relay.op.nn.relu(value)
    body = relay.op.nn.conv2d(value, weight(rng, 2, 2, 1, 1))
    mod = infer_module(relay.module(relay.Function([x], body)))
    assert find_groups(mod["main"]).sizes == (2,)
