"""Points that only moves, pools and concatenations divide round their values once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Constant
from compiler.ir.module import IRModule
from compiler.quantize import (
    Candidate,
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    mark,
    prerequisite_optimize,
)
from compiler.quantize.scales.bind_scales import measured_points
from compiler.quantize.scales.shared_ranges import shared_ranges
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, const

MEASURED = QConfig.recommended(calibrate_mode="max", activation_scheme="unsigned")
FITTED = MEASURED.with_overrides(weight_rounding="sequential")


def joined(rng: np.random.Generator, wide: float, read_twice: bool = False) -> IRModule:
    """Two branches, one ``wide`` times as wide as the other, a pool, and a reader of both."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (2, 3, 8, 8))
    narrow = nn.relu(nn.conv2d(x, const(rng, 4, 3, 3, 3), padding=(1, 1, 1, 1)))
    weight = relay.const(rng.normal(0, 0.4 * wide, (5, 3, 1, 1)).astype(np.float32))
    both = op.concatenate(relay.Tuple((narrow, nn.relu(nn.conv2d(x, weight)))), axis=1)
    result = nn.conv2d(nn.max_pool2d(both, (2, 2), (2, 2)), const(rng, 6, 9, 1, 1))
    if read_twice:
        own = nn.max_pool2d(nn.conv2d(narrow, const(rng, 6, 4, 1, 1)), (2, 2), (2, 2))
        result = op.add(result, own)
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def data_of(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def steps_of(mod: IRModule, config: QConfig, data: list[dict[str, Any]]) -> list[float]:
    """Steps of the points whose values are never negative, in binding order."""
    channels = channel_stats(mod, data, sample=True) if config.needs_channels else None
    made = calibrated(mod, config, data, channels)
    if config == MEASURED:
        assert_same_integers(made.partitioned, data[:1])
    return steps_within(made)


def steps_within(made: Candidate) -> list[float]:
    found = []
    for point in measured_points(made.simulated):
        step, low, _ = (arg.data for arg in point.args[1:] if isinstance(arg, Constant))
        if low == 0:
            found.append(float(step))
    return found


def test_fields_of_a_concatenation_take_the_range_of_what_reads_it() -> None:
    rng = np.random.default_rng(0)
    mod, data = joined(rng, 8.0), data_of(rng)
    for config in (MEASURED, FITTED):
        assert len(set(steps_of(mod, config, data))) == 1


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_range_that_is_fitted_behind_a_concatenation_is_that_of_its_fields(
    read_twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    mod, data = joined(rng, 1.0, read_twice), data_of(rng)
    channels = channel_stats(mod, data, sample=True)
    annotated, _ = mark(mod, FITTED, channels)
    stats = calibration_stats(annotated, data, (FITTED.percentile,))
    small = np.float32(0.9) * np.asarray(activation_scales(stats, FITTED))

    made = build_candidate(mod, FITTED, small, channels)

    assert_same_integers(made.partitioned, data[:1])
    steps = steps_within(made)
    monkeypatch.setattr("compiler.quantize.candidate.RangeFitting", lambda *_: None)
    given = build_candidate(mod, FITTED, small, channels)
    before = steps_within(given)
    if read_twice:  # a layer is fitted to what a field holds
        assert steps[:2] == before[:2]
    else:
        assert len(set(steps)) == 1
        assert steps[0] > 1.05 * before[0]


def test_another_reader_keeps_a_range_that_is_much_finer() -> None:
    for wide, ranges in ((1.0, 1), (8.0, 2)):
        rng = np.random.default_rng(2)
        mod, data = joined(rng, wide, read_twice=True), data_of(rng)
        assert len(set(steps_of(mod, MEASURED, data))) == ranges


def test_without_integer_tables_each_point_keeps_the_range_that_it_was_given() -> None:
    rng = np.random.default_rng(4)
    mod, data = joined(rng, 8.0), data_of(rng)
    relays = QConfig(calibrate_mode="max", skip_conv_layers=[], prerequisite_level=3)
    annotated, run = mark(mod, relays)
    ranges = activation_scales(calibration_stats(annotated, data, (relays.percentile,)), relays)
    assert len(set(ranges)) > 1
    kept, joins = shared_ranges(annotated, run.qconfig, ranges)
    assert kept is not None
    assert kept.tolist() == np.asarray(ranges, np.float32).tolist()
    assert not joins
    shared, _ = shared_ranges(annotated, run.qconfig.with_overrides(integer_tables=True), ranges)
    assert shared is not None
    assert shared.tolist() != kept.tolist()
