"""Random networks under random configurations: nothing fails, wraps or changes its meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import evaluate, parse, relay, structural_equal, text
from compiler.ir.analysis import free_vars
from compiler.ir.module import IRModule
from compiler.quantize import (
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    mark,
    measured_points,
    prerequisite_optimize,
)
from compiler.targets.reference.executor import ReferenceExecutor

CHANNELS = 4
SHAPE = (1, CHANNELS, 8, 8)


def constant(rng: np.random.Generator, *shape: int, bound: float = 0.4) -> Any:
    return relay.const(rng.uniform(-bound, bound, shape).astype(np.float32))


def operator(rng: np.random.Generator, values: list[Any]) -> Any:
    """One more value from those there are."""

    def pick() -> Any:
        return values[rng.integers(len(values))]

    op, a, b = relay.op, pick(), pick()
    vector = constant(rng, CHANNELS, 1, 1, bound=2)
    pair = (a, vector) if rng.random() < 0.7 else (vector, a)
    match rng.integers(0, 15):
        case 0 | 1 | 2:
            return op.nn.conv2d(a, constant(rng, CHANNELS, CHANNELS, 3, 3), padding=(1, 1, 1, 1))
        case 3:
            kernel = constant(rng, CHANNELS, 1, 3, 3)
            return op.nn.conv2d(a, kernel, padding=(1, 1, 1, 1), groups=CHANNELS)
        case 4:
            return op.add(a, b)
        case 5:
            return op.multiply(a, b)
        case 6:
            return op.nn.relu(a)
        case 7:
            return op.clip(a, a_min=0.0, a_max=float(rng.uniform(0.5, 6)))
        case 8:
            return op.add(*pair)
        case 9:
            return op.multiply(*pair)
        case 10:
            return op.nn.max_pool2d(a, pool_size=(3, 3), padding=(1, 1, 1, 1))
        case 11:
            return op.nn.avg_pool2d(a, pool_size=(3, 3), padding=(1, 1, 1, 1))
        case 12:
            fields = [a, b, *([pick()] if rng.random() < 0.5 else [])]
            if rng.random() < 0.3:
                fields.append(constant(rng, *SHAPE, bound=1))
            joined = op.concatenate(relay.Tuple(fields), axis=1)
            return op.nn.conv2d(joined, constant(rng, CHANNELS, CHANNELS * len(fields), 1, 1))
        case 13:
            return op.sigmoid(a)
        case _:
            return op.transpose(op.transpose(a, axes=(0, 2, 3, 1)), axes=(0, 3, 1, 2))


def network(rng: np.random.Generator) -> IRModule:
    values: list[Any] = [relay.var("x", SHAPE)]
    if rng.random() < 0.3:
        values.append(relay.var("y", SHAPE))
    for _ in range(rng.integers(3, 12)):
        values.append(operator(rng, values))
    result = values[-1]
    ending = rng.integers(0, 4)
    if ending == 1:
        result = relay.Tuple([values[-1], values[-2]])
    elif ending == 2:
        pooled = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(result))
        result = relay.op.add(
            relay.op.nn.dense(pooled, constant(rng, 5, CHANNELS)), constant(rng, 5)
        )
    mod = relay.module(relay.Function(free_vars(result), result))
    return prerequisite_optimize(mod, None, 3)


def configuration(rng: np.random.Generator) -> QConfig:
    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    base = one(QConfig.recommended(), QConfig(skip_conv_layers=[]))
    changed = {
        "partition_conversions": "enabled",
        "calibrate_mode": one("max", "percentile", "global_scale"),
        "weight_scale": one("max", "power2"),
        "weight_granularity": one("tensor", "channel"),
        "rounding": one("UPWARD", "TONEAREST"),
        "avg_pool_round": True,
        "keep_output_wide": one(False, True),
        "bias_mode": one("weight", "accumulator"),
        "skip_dense_layer": one(False, False, True),
        "stop_after_global_pool": one(False, False, True),
        "skip_conv_layers": one([], [], [0], [1]),
    }
    changed |= one({}, {}, {"nbit_input": int(rng.integers(5, 9)), "nbit_weight": 6})
    changed |= one({}, {}, {}, {"dtype_input": "int16", "nbit_input": 12})
    changed |= one({}, {}, {}, {}, {"debug_enabled_ops": ["nn.conv2d", "add"]})
    return base.with_overrides(**changed)


def setup(seed: int) -> tuple[IRModule, QConfig, dict[str, Any], np.random.Generator]:
    rng = np.random.default_rng(seed)
    mod, config = network(rng), configuration(rng)
    inputs = {p.name_hint: rng.normal(0, 1.5, SHAPE).astype(np.float32) for p in mod["main"].params}
    return mod, config, inputs, rng


@pytest.mark.parametrize("seed", range(30))
def test_integers_follow_the_simulation(seed: int) -> None:
    mod, config, inputs, _ = setup(seed)
    ranges: Any = None
    if config.calibrate_mode != "global_scale":
        annotated, _ = mark(mod, config)
        ranges = []
        if measured_points(annotated):
            stats = calibration_stats(
                annotated, [inputs], (config.percentile,), executor=ReferenceExecutor
            )
            ranges = activation_scales(stats, config)
    candidate = build_candidate(mod, config, ranges)
    assert candidate.integer is not None
    assert candidate.partitioned is not None
    whole = evaluate(candidate.integer, inputs)
    for a, b in zip(whole, evaluate(candidate.partitioned, inputs)):
        np.testing.assert_array_equal(a, b)
    for found, simulated in zip(whole, evaluate(candidate.simulated, inputs)):
        # One rounding flipped by float summation moves what follows by some steps of 1/16 .. 1/128.
        assert np.abs(found - simulated).max() <= 0.12 * max(np.abs(simulated).max(), 0.05)
    assert structural_equal(parse(text(candidate.partitioned)), candidate.partitioned)


@pytest.mark.parametrize("seed", range(100, 120))
def test_scales_far_apart_saturate_and_never_wrap(seed: int) -> None:
    mod, config, inputs, rng = setup(seed)
    annotated, _ = mark(mod, config)
    ranges = np.exp2(rng.uniform(-16, 16, len(measured_points(annotated))))
    if rng.random() < 0.5:
        ranges = np.exp2(np.rint(np.log2(ranges)))
    candidate = build_candidate(mod, config, ranges.astype(np.float32))
    assert candidate.integer is not None
    for found, simulated in zip(
        evaluate(candidate.integer, inputs), evaluate(candidate.simulated, inputs)
    ):
        assert np.abs(found - simulated).max() <= 0.05 * max(np.abs(simulated).max(), 1e-6)
