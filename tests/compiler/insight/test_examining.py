"""examine: figures per point and layer against what is computed by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CalibrationError
from compiler.insight import Insight, examine
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.quantize import (
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    mark,
    prerequisite_optimize,
)
from compiler.quantize.calibration.stats import CalibrationStats
from compiler.quantize.scales.modes import calibrate_modes
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler import networks as models
from tests.compiler.frontend.from_onnx.test_load import imported
from tests.compiler.frontend.from_onnx.test_recurrent import (
    BATCH,
    FEATURES,
    STEPS,
    weights,
    whole,
)
from tests.each import each

Batches = list[dict[str, np.ndarray[Any, Any]]]


def _prepared(
    model: tuple[IRModule, dict[str, Any]], shape: tuple[int, ...], **fields: Any
) -> tuple[IRModule, QConfig, CalibrationStats, Batches]:
    mod = prerequisite_optimize(*model, 3)
    config = QConfig.recommended(**fields)
    rng = np.random.default_rng(1)
    batches = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(3)]
    return mod, config, calibration_stats(mark(mod, config)[0], batches), batches


def _examined(
    model: tuple[IRModule, dict[str, Any]], shape: tuple[int, ...], **fields: Any
) -> Insight:
    return examine(*_prepared(model, shape, **fields))


def _sqnr(wanted: list[Any], found: list[Any]) -> float:
    a, b = np.concatenate(wanted).astype(float), np.concatenate(found).astype(float)
    return float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))


def test_a_layer_is_a_product_with_its_bias() -> None:
    found = _examined(models.conv_chain(depth=3), (1, 3, 8, 8))
    assert [layer.op for layer in found.layers] == ["nn.conv2d"] * 3
    assert [layer.conv_index for layer in found.layers] == [0, 1, 2]
    kinds = [[found.points[place].kind for place in layer.points] for layer in found.layers]
    assert all(sorted(kind) == ["input", "weight", "weight"] for kind in kinds)


def test_a_classifier_reads_its_input_through_what_only_moves_it() -> None:
    found = _examined(models.mobile_net(), (1, 3, 8, 8))
    dense = next(layer for layer in found.layers if layer.op == "nn.dense")
    kinds = sorted(found.points[place].kind for place in dense.points)
    assert kinds == ["input", "weight", "weight"]
    assert all(layer.op not in ("nn.batch_flatten", "reshape") for layer in found.layers)


def test_outputs_are_compared_as_simulation_and_reference_give_them() -> None:
    mod, config, stats, batches = _prepared(models.conv_chain(), (1, 3, 8, 8))
    found = examine(mod, config, stats, batches)
    candidate = build_candidate(mod, config, activation_scales(stats, config))
    wanted = [evaluate(mod, batch)[0] for batch in batches]
    assert candidate.integer is not None
    integer = [evaluate(candidate.integer, batch)[0] for batch in batches]
    assert found.integer is not None
    # onnxruntime sums the float reference in another order.
    assert found.integer.output_db == pytest.approx(_sqnr(wanted, integer), abs=0.01)
    simulated = [evaluate(candidate.simulated, batch)[0] for batch in batches]
    assert found.simulated.output_db == pytest.approx(_sqnr(wanted, simulated), abs=0.1)


def test_a_single_layer_costs_alone_what_the_module_costs() -> None:
    found = _examined(models.conv_chain(depth=1), (1, 3, 8, 8))
    (layer,) = found.layers
    assert layer.output_db == found.simulated.output_db


def test_upstream_error_is_seen_by_later_points_only() -> None:
    found = _examined(models.conv_chain(depth=3), (1, 3, 8, 8))
    first, *later = [point for point in found.points if point.kind == "input"]
    assert first.upstream_db == first.local_db
    assert first.op == ""
    for point in later:
        assert point.upstream_db is not None
        assert point.local_db is not None
        assert point.upstream_db < point.local_db


def test_every_calibrate_mode_has_its_threshold() -> None:
    mod, config, stats, batches = _prepared(models.conv_chain(), (1, 3, 8, 8))
    measured = [p for p in examine(mod, config, stats, batches).points if p.thresholds]
    for name in each(calibrate_modes.names()):
        scales = activation_scales(stats, config.with_overrides(calibrate_mode=name))
        chosen = scales[: len(measured)]  # the ends of uneven grids follow
        assert [p.thresholds[name] for p in measured] == [float(s) for s in chosen]


def test_runtime_warnings_counts_what_the_clip_bounds_cut_off() -> None:
    mod, config, stats, batches = _prepared(
        models.mlp(), (1, 8), calibrate_mode="global_scale", global_scale=0.5
    )
    found = examine(mod, config, stats, batches)
    values = np.concatenate([batch["x"] for batch in batches])
    expected = float(np.mean(np.abs(values) > 127.5 * 0.5 / 128))
    assert found.points[0].saturated == pytest.approx(expected)
    assert 0 < expected < 1


def test_points_of_a_loop_have_their_own_thresholds() -> None:
    model = imported(whole("GRU", weights("GRU")))
    found = _examined(model, (STEPS, BATCH, FEATURES), calibrate_mode="max")
    measured = [point for point in found.points if point.kind != "weight"]
    assert len(measured) > 2
    for point in measured:
        largest = max(abs(point.minimum), abs(point.maximum))
        # A state has a wider range than it was seen to have, a saturating table a smaller one.
        assert pytest.approx(point.thresholds["max"]) in (largest, point.range_s), point


def test_weights_say_how_their_scales_spread_over_channels() -> None:
    mod, params = models.mlp()
    params["fc0_w"][0] *= 100
    wide = next(
        point for point in _examined((mod, params), (1, 8)).points if point.kind == "weight"
    )
    assert wide.channels == 16
    assert wide.scale_max > 20 * wide.scale_min
    tensor = _examined((mod, params), (1, 8), weight_granularity="tensor")
    narrow = next(point for point in tensor.points if point.kind == "weight")
    assert narrow.channels == 1
    assert narrow.scale_min == narrow.scale_max
    assert narrow.upstream_db is None


def test_the_layers_around_an_uneven_channel_cost_most() -> None:
    mod, params = models.conv_chain(depth=3)
    params["conv1_w"][0] *= 300
    params["conv2_w"][:, 0] /= 300
    found = _examined((mod, params), (1, 3, 8, 8), weight_granularity="tensor")
    cost = [layer.output_db or np.inf for layer in found.layers]
    assert cost[0] > 30 > 10 > max(cost[1:])


def test_a_module_with_islands_and_two_outputs_is_examined_as_well() -> None:
    x, w = relay.var("x", (1, 3, 8, 8)), relay.var("w", (4, 3, 1, 1))
    value = relay.op.nn.conv2d(x, w, channels=4, kernel_size=(1, 1))
    body = relay.Tuple((relay.op.nn.lrn(value), value))
    weights = {"w": np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32)}
    found = _examined((relay.module(Function((x, w), body)), weights), (1, 3, 8, 8))
    assert found.layers[0].op == "nn.conv2d"
    assert found.integer is not None
    assert found.simulated.output_db is not None


def test_the_reference_executor_gives_the_same_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    mod, config, stats, batches = _prepared(models.mlp(), (1, 8))
    fast = examine(mod, config, stats, batches)
    for room in ("examining", "network"):
        monkeypatch.setattr(f"compiler.insight.{room}.float_executor", ReferenceExecutor)
    slow = examine(mod, config, stats, batches)
    assert [x.points for x in fast.layers] == [x.points for x in slow.layers]
    for a, b in zip(fast.layers, slow.layers, strict=True):
        # A rounding that falls the other way in one of few values moves the ratio a little.
        assert a.output_db == pytest.approx(b.output_db, abs=0.5)


def test_corrected_biases_count_for_the_module_and_not_for_its_parts() -> None:
    mod, config, stats, batches = _prepared(models.conv_chain(), (1, 3, 8, 8))
    plain = examine(mod, config, stats, batches)
    fields = config.with_overrides(weight_rounding="corrected")
    corrected = examine(mod, fields, stats, batches, channels=channel_stats(mod, batches))
    assert corrected.layers == plain.layers
    assert corrected.points == plain.points
    assert corrected.simulated != plain.simulated


def test_progress_reaches_the_number_of_layers() -> None:
    seen: list[tuple[int, int]] = []
    examine(*_prepared(models.mlp(), (1, 8)), progress=lambda done, of: seen.append((done, of)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_no_sample_is_refused() -> None:
    mod, config, stats, _ = _prepared(models.mlp(), (1, 8))
    with pytest.raises(CalibrationError, match="no sample"):
        examine(mod, config, stats, [])


def test_everything_is_plain_json() -> None:
    values = json.loads(json.dumps(asdict(_examined(models.mlp(), (1, 8))), allow_nan=False))
    assert {"samples", "simulated", "integer", "layers", "points"} == set(values)
    assert values["layers"][0]["points"]
