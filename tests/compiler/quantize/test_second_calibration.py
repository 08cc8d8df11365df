"""calibrate_passes 2: ranges of what the quantized network really holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.ir.module import IRModule
from compiler.quantize import (
    Calibration,
    QConfig,
    QuantizeContext,
    activation_scales,
    build_candidate,
    calibration_stats,
    mark,
    measured_points,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize.calibration.measurement import LocalData
from compiler.targets.reference.executor import ReferenceExecutor


def network(rng: np.random.Generator) -> IRModule:
    op, nn = relay.op, relay.op.nn

    def const(*shape: int) -> Any:
        return relay.const(rng.normal(0, 0.4, shape).astype(np.float32))

    x = relay.var("x", (2, 3, 6, 6))
    a = nn.relu(op.add(nn.conv2d(x, const(4, 3, 3, 3)), const(4, 1, 1)))
    b = nn.relu(op.add(nn.conv2d(a, const(4, 4, 3, 3)), const(4, 1, 1)))
    body = nn.dense(nn.batch_flatten(b), const(5, 16))
    return prerequisite_optimize(relay.module(relay.Function([x], body)), None, 3)


def batches(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, (2, 3, 6, 6)).astype(np.float32)} for _ in range(4)]


COARSE = QConfig.recommended(
    calibrate_mode="max", nbit_input=3, nbit_weight=3, activation_scheme="symmetric"
)
TWICE = COARSE.with_overrides(calibrate_passes=2)


def first_ranges(mod: IRModule, config: QConfig, data: list[dict[str, Any]]) -> Any:
    annotated, _ = mark(mod, config)
    return activation_scales(calibration_stats(annotated, data), config)


def test_the_ranges_are_those_of_the_simulated_network() -> None:
    rng = np.random.default_rng(0)
    mod, data = network(rng), batches(rng)
    first = first_ranges(mod, TWICE, data)
    stats = Calibration(mod, LocalData(mod, data, ReferenceExecutor)).stats_for(TWICE)
    simulated = build_candidate(mod, TWICE, first).simulated
    points = measured_points(simulated)
    assert len(points) == stats.point_tensor.size
    for place, point in enumerate(points):
        read = simulated.with_function("main", simulated["main"].with_fields(body=point.args[0]))
        wanted = max(np.abs(evaluate(read, batch)[0]).max() for batch in data)
        assert stats.tensor(int(stats.point_tensor[place])).largest == wanted
    second = activation_scales(stats, TWICE)
    assert second[0] == first[0]  # nothing is upstream of the input
    assert (second[1:] != first[1:]).any()


@pytest.mark.parametrize("mode", ["max", "global_scale"])
def test_the_flow_in_one_call_gives_the_module_of_the_pieces(mode: str) -> None:
    rng = np.random.default_rng(1)
    mod, data = network(rng), batches(rng)
    config = TWICE.with_overrides(calibrate_mode=mode, bias_correction=False)
    run = QuantizeContext(config)
    whole = quantize(mod, dataset=data, context=run)
    ranges = None
    if mode != "global_scale":
        ranges = activation_scales(Calibration(mod, data).stats_for(config), config)
    pieces = build_candidate(mod, config, ranges)
    assert run.report.points == pieces.report.points
    assert pieces.partitioned is not None
    for batch in data:
        np.testing.assert_array_equal(
            evaluate(whole, batch)[0], evaluate(pieces.partitioned, batch)[0]
        )
