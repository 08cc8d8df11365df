"""Grids that reach farther on one side of 0, and the ends that calibrate_mode "mse" gives them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.quantize import QConfig
from compiler.quantize.calibration.order_statistics import BucketCounts
from compiler.quantize.calibration.stats import NUM_BINS, TensorStats
from compiler.quantize.scales.modes import two_sided_range
from compiler.quantize.scales.mse import mse_ends, mse_threshold
from compiler.quantize.scales.uneven_grid import Sidedness

ASYMMETRIC = QConfig(activation_scheme="asymmetric")


def point_of(data: Expr, kind: QAnnotateKind = QAnnotateKind.INPUT) -> Call:
    point = attach_simulated_quantize(data, kind)
    assert isinstance(point, Call)
    return point


def sided(point: Call, config: QConfig = ASYMMETRIC) -> Sidedness:
    return Sidedness(list(post_order(relay.op.nn.softmax(point))), config)


@given(
    st.floats(-1e3, -1e-3), st.floats(0, 1e3), st.integers(2, 8), st.sampled_from((1e-6, 1.0, 1e6))
)
def test_a_grid_holds_zero_and_both_ends_within_a_step(
    low: float, high: float, nbit: int, unit: float
) -> None:
    low, high = low * unit, high * unit
    point = point_of(relay.var("x", (2, 2)))
    grid = sided(point).grid(point, max(-low, high), low, high, nbit)
    if grid is None:  # near enough to an even range
        assert high - low > 0.93 * (2 - 2.0 ** (1 - nbit)) * max(-low, high)
        return
    first, last = grid.ends
    assert first <= 0 <= last
    assert last - first == 2**nbit - 1
    step = float(grid.step)
    assert abs(first * step - low) < step
    assert abs(last * step - high) < step


def test_what_is_never_negative_uses_all_levels_on_one_side() -> None:
    x = relay.var("x", (2, 2))
    proven, seen = point_of(relay.op.nn.relu(x)), point_of(x)
    for config in (ASYMMETRIC, QConfig(activation_scheme="unsigned")):
        for point, low in ((proven, -3.0), (seen, 0.0)):
            grid = sided(point, config).grid(point, 3.0, low, 3.0, 8)
            assert grid is not None
            assert grid.ends == (0, 255)
            assert grid.step == np.float32(3 / 256)


@pytest.mark.parametrize(
    ("scheme", "kind", "nbit"),
    [
        ("symmetric", QAnnotateKind.INPUT, 8),
        ("unsigned", QAnnotateKind.INPUT, 8),
        ("asymmetric", QAnnotateKind.ACTIVATION, 8),
        ("asymmetric", QAnnotateKind.INPUT, 16),
    ],
)
def test_accumulators_wide_values_and_other_schemes_stay_symmetric(
    scheme: str, kind: QAnnotateKind, nbit: int
) -> None:
    point = point_of(relay.var("x", (2, 2)), kind)
    config = QConfig(activation_scheme=scheme)
    assert sided(point, config).grid(point, 3.0, -1.0, 3.0, nbit) is None


def error_of(values: np.ndarray, low: float, high: float, nbit: int) -> float:
    step = (high - low) / (2**nbit - 1)
    zero = np.floor(-low / step + 0.5)
    held = np.clip(np.round(values / step), -zero, 2**nbit - 1 - zero) * step
    return float(np.square(held - values).mean())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 8))
def test_the_ends_by_mse_err_no_more_than_the_extremes_and_the_even_range(
    seed: int, nbit: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_t(4, 4000) * np.where(rng.uniform(size=4000) < 0.7, 1.0, 0.2)
    values = np.where(values < 0, 0.15 * values, values).astype(np.float32)
    largest = float(np.abs(values).max())
    hist, _ = np.histogram(values, NUM_BINS, (-largest, largest))
    low, high = float(values.min()), float(values.max())
    found = error_of(values, *map(float, mse_ends(hist, low, high, nbit)), nbit)
    # Bins are finer than levels, so what the histogram says holds for the values nearly as well.
    assert found <= 1.02 * error_of(values, low, high, nbit)
    even = float(mse_threshold(hist, largest, nbit))
    step = even / 2 ** (nbit - 1)
    top = 2 ** (nbit - 1) - 1
    symmetric = np.clip(np.round(values / step), -top, top) * step
    assert found < np.square(symmetric - values).mean()


@pytest.mark.parametrize(
    ("minimum", "maximum", "ends"),
    [(-2, 9, (-2, 4)), (-9, 2, (-4, 2)), (1, 9, (0, 4)), (-9, -1, (-4, 0)), (-9, 9, (-4, 4))],
)
def test_a_mode_with_one_threshold_is_cut_at_the_extremes(
    minimum: float, maximum: float, ends: tuple[float, float]
) -> None:
    none = BucketCounts(np.zeros(0, np.uint16), np.zeros(0, np.int64))
    stats = TensorStats("x", np.float32(minimum), np.float32(maximum), 2, none, {}, None)
    config = QConfig(calibrate_mode="global_scale", global_scale=4.0)
    assert two_sided_range(stats, config, 8, 4.0) == ends
