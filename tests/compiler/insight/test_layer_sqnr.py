"""layer_sqnr against examine, and against the float model for weights that are rounded before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.errors import CalibrationError
from compiler.insight import examine, layer_sqnr
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
from tests.compiler import networks as models


def _prepared(**fields: Any) -> tuple[Any, ...]:
    mod = prerequisite_optimize(*models.mobile_net(), 3)
    config = QConfig.recommended(**fields)
    rng = np.random.default_rng(5)
    batches = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    channels = channel_stats(mod, batches, sample=True) if config.needs_channels else None
    stats = calibration_stats(mark(mod, config, channels)[0], batches)
    return mod, config, stats, batches, channels


@pytest.mark.parametrize("rounding", ["nearest", "sequential"])
def test_layers_and_outputs_are_those_of_examine(rounding: str) -> None:
    mod, config, stats, batches, channels = _prepared(weight_rounding=rounding)
    whole = examine(mod, config, stats, batches, channels=channels)
    scales = activation_scales(stats, config)
    found, outputs = layer_sqnr(mod, config, scales, batches, channels=channels)
    assert outputs == whole.simulated
    assert [layer.op for layer in found] == [layer.op for layer in whole.layers]
    for mine, theirs in zip(found, whole.layers, strict=True):
        points = [whole.points[place] for place in theirs.points]
        weights = [p.local_db for p in points if p.kind == "weight" and p.local_db is not None]
        upstream = [p.upstream_db for p in points if p.upstream_db is not None]
        assert mine.weights_db == min(weights, default=None)
        assert mine.upstream_db == min(upstream, default=None)


def test_weights_rounded_before_are_compared_with_the_float_models() -> None:
    mod, config, stats, batches, channels = _prepared(weight_rounding="sequential")
    scales = activation_scales(stats, config)
    found, outputs = layer_sqnr(mod, config, scales, batches, channels=channels)
    weighted = [layer for layer in found if layer.op in ("nn.conv2d", "nn.dense")]
    assert weighted
    assert all(layer.weights_db is not None and layer.weights_db < 80 for layer in weighted)
    simulated = build_candidate(mod, config, scales, channels).simulated
    wanted = np.concatenate([evaluate(mod, batch)[0] for batch in batches]).astype(float)
    rounded = np.concatenate([evaluate(simulated, batch)[0] for batch in batches]).astype(float)
    noise = ((wanted - rounded) ** 2).sum()
    assert outputs.output_db == pytest.approx(10 * np.log10((wanted**2).sum() / noise), abs=0.2)


def test_no_sample_is_an_error() -> None:
    mod, config, stats, _, channels = _prepared()
    with pytest.raises(CalibrationError, match="no sample"):
        layer_sqnr(mod, config, activation_scales(stats, config), [], channels=channels)
