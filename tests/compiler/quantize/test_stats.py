"""Calibration statistics: exact merge of shards, exact order statistics, flat arrays."""

from __future__ import annotations

import tracemalloc
from functools import reduce

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.calibration.collectors import HistogramCollector, RangeCollector
from compiler.quantize.calibration.measurement import Measurement
from compiler.quantize.calibration.order_statistics import KeyCounter
from compiler.quantize.calibration.stats import (
    NUM_BINS,
    CalibrationStats,
    PointMap,
    bin_edges,
    bins_of,
    percentile_rank,
)
from compiler.quantize.scales.activation_scales import activation_scales
from compiler.quantize.scales.kl_divergence import find_scale_by_kl
from compiler.quantize.scales.modes import find_scale_by_percentile
from compiler.quantize.scales.mse import mse_threshold

INPUT, ACTIVATION = int(QAnnotateKind.INPUT), int(QAnnotateKind.ACTIVATION)
PERCENTILES = (0.5, 0.9, 0.999, 0.99999)
POINTS = PointMap(
    ("0: x", "1: relu", "2: dead"),
    np.array([0, 1, 0, 2]),
    np.array([INPUT, INPUT, ACTIVATION, INPUT]),
    (("a",), ("a", "b"), ("",), ("",)),
)


def batches(count: int = 12) -> list[list[NDArray[np.float32]]]:
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(count):
        x = (rng.standard_normal((1, 3, 40, 41)) * rng.uniform(0.5, 4)).astype(np.float32)
        rows.append([x, np.maximum(x, 0)[:, :, ::2], np.zeros((1, 7), np.float32)])
    return rows


def collect(
    rows: list[list[NDArray[np.float32]]], shards: list[slice], order: list[int] | None = None
) -> CalibrationStats:
    def ranges(part: slice) -> CalibrationStats:
        collector = RangeCollector(POINTS)
        for row in rows[part]:
            collector.update(row)
        return collector.result()

    picked = [shards[i] for i in order or range(len(shards))]
    merged = reduce(CalibrationStats.merge, map(ranges, picked))

    def histograms(part: slice) -> CalibrationStats:
        collector = HistogramCollector(merged, PERCENTILES)
        for row in rows[part]:
            collector.update(row)
        return collector.result()

    return reduce(CalibrationStats.merge, map(histograms, picked))


WHOLE = [slice(0, 12)]
SHARDS = [slice(0, 5), slice(5, 6), slice(6, 12)]


def same_bits(a: CalibrationStats, b: CalibrationStats) -> None:
    left, right = a.to_arrays(), b.to_arrays()
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)
        assert array.dtype == right[name].dtype, name


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_shards_in_any_order_give_the_same_bits_as_one_pass(order: list[int]) -> None:
    rows = batches()
    same_bits(collect(rows, SHARDS, order), collect(rows, WHOLE))


def test_ranges_counts_and_histograms_are_those_of_the_whole_data() -> None:
    rows = batches()
    stats = collect(rows, SHARDS)
    for index in range(3):
        values = np.concatenate([row[index].reshape(-1) for row in rows])
        tensor = stats.tensors[index]
        assert (tensor.minimum, tensor.maximum) == (values.min(), values.max())
        assert tensor.count == values.size
        assert tensor.hist is not None
        assert tensor.hist.sum() == values.size
        assert tensor.upper.counts.sum() == values.size


@pytest.mark.parametrize("fraction", PERCENTILES)
def test_percentiles_are_exact_order_statistics(fraction: float) -> None:
    rows = batches()
    stats = collect(rows, SHARDS)
    for index in range(3):
        values = np.concatenate([row[index].reshape(-1) for row in rows])
        rank = percentile_rank(values.size, fraction)
        assert stats.tensors[index].order_statistic(rank) == np.sort(np.abs(values))[rank]
        expected = find_scale_by_percentile(values, fraction)
        assert stats.tensors[index].order_statistic(rank) == expected


# n, k, S at fraction 0.99999
@pytest.mark.parametrize(
    ("values", "rank", "scale"),
    [
        (np.random.default_rng(0).standard_normal(100000), 99999, 4.73195791),
        (np.random.default_rng(1).laplace(0, 1, 50000), 49999, 10.9081097),
        (np.maximum(np.random.default_rng(2).standard_normal(100000), 0), 99999, 4.9159832),
        (np.random.default_rng(9).standard_normal(64), 63, 2.52232742),
    ],
    ids=["normal_s0", "laplace_s1", "relu_normal_s2", "few_s9"],
)
def test_percentile_of_seeded_distributions(
    values: NDArray[np.float64], rank: int, scale: float
) -> None:
    assert percentile_rank(values.size, 0.99999) == rank
    assert float(find_scale_by_percentile(values)) == pytest.approx(scale, rel=1e-8)


def test_a_percentile_that_was_not_collected_is_refused() -> None:
    stats = collect(batches(), WHOLE)
    with pytest.raises(CalibrationError, match="was not collected"):
        activation_scales(stats, QConfig(calibrate_mode="percentile", percentile=0.2))


def test_flat_arrays_bring_back_the_same_statistics(tmp_path) -> None:
    stats = collect(batches(), WHOLE)
    np.savez(tmp_path / "stats.npz", **stats.to_arrays())
    with np.load(tmp_path / "stats.npz", allow_pickle=False) as arrays:
        back = CalibrationStats.from_arrays(dict(arrays))
    same_bits(stats, back)
    assert back.round == 2


@pytest.mark.parametrize("largest", [0.0, 1e-40, 2e-30, 0.37, 1.0, 6.02, 1e20, 3e38])
def test_the_bin_of_a_value_is_that_of_the_edges(largest: float) -> None:
    edges = bin_edges(np.float32(largest))
    near = np.concatenate([np.nextafter(edges, np.float32(side)) for side in (-np.inf, np.inf)])
    drawn = np.random.default_rng(3).uniform(-largest, largest, 4000).astype(np.float32)
    values = np.concatenate([edges, near[np.abs(near) <= edges[-1]], drawn])
    expected = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, NUM_BINS - 1)
    np.testing.assert_array_equal(bins_of(values, np.float32(largest)), expected)


def test_arrays_with_readers_of_fewer_points_are_refused() -> None:
    arrays = dict(collect(batches(1), [slice(0, 1)]).to_arrays())
    arrays["readers"] = np.asarray("[]")
    with pytest.raises(ValueError, match="shorter"):
        CalibrationStats.from_arrays(arrays)


def test_arrays_without_a_sample_are_no_statistics_of_that_step() -> None:
    arrays = collect(batches(1), [slice(0, 1)]).to_arrays()
    with pytest.raises(CalibrationError, match="no sample of the inputs"):
        Measurement("sample", QConfig()).read(arrays)


def test_counted_keys_take_memory_for_the_distinct_ones_only() -> None:
    counter, times = KeyCounter(), np.ones(70_000, np.int64)
    tracemalloc.start()
    for start in range(40):
        counter.add((np.arange(70_000) + start).astype(np.uint16), times.copy())
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 4_000_000  # the entries are 28 MB
    counts = counter.result()
    assert counts.keys.tolist() == list(range(1 << 16))
    assert int(counts.counts.sum()) == 40 * 70_000


def test_foreign_arrays_are_refused_by_name() -> None:
    with pytest.raises(CalibrationError, match="'upper_sizes' is missing"):
        CalibrationStats.from_arrays({"images": np.zeros(3)})


def test_scales_follow_points_kinds_and_modes() -> None:
    rows = batches()
    stats = collect(rows, WHOLE)
    x = np.concatenate([row[0].reshape(-1) for row in rows])
    relu = np.concatenate([row[1].reshape(-1) for row in rows])
    top, relu_top = np.abs(x).max(), relu.max()

    kl = activation_scales(stats, QConfig(calibrate_mode="kl_divergence"))
    # 32-bit activations have more levels than bins, so there is nothing to clip
    assert kl.tolist() == [find_scale_by_kl(x), find_scale_by_kl(relu), top, kl[3]]
    largest = activation_scales(stats, QConfig(calibrate_mode="max"))
    assert largest.tolist() == [top, relu_top, top, 1.0]
    fixed = activation_scales(stats, QConfig(calibrate_mode="global_scale", global_scale=4.0))
    assert fixed.tolist() == [4.0] * 4


def test_a_dead_tensor_gets_scale_one() -> None:
    stats = collect(batches(), WHOLE)
    for mode in ("max", "percentile", "mse"):
        assert activation_scales(stats, QConfig(calibrate_mode=mode))[3] == 1.0


def test_mse_threshold_errs_less_than_its_neighbours_on_the_real_data() -> None:
    rows = batches()
    x = np.concatenate([row[0].reshape(-1) for row in rows]).astype(np.float64)
    scale = float(activation_scales(collect(rows, WHOLE), QConfig(calibrate_mode="mse"))[0])

    def error(threshold: float) -> float:
        step = threshold / 128
        grid = np.clip(np.sign(x) * np.floor(np.abs(x) / step + 0.5), -127, 127) * step
        return float(np.mean((x - grid) ** 2))

    top = float(np.abs(x).max())
    assert error(scale) <= min(error(top), error(scale + top / 40), error(scale - top / 40))


@pytest.mark.parametrize("count", [16, 60, 255])
def test_mse_threshold_puts_the_few_values_of_images_on_levels(count: int) -> None:
    largest = 1.0
    hist = np.zeros(8001, np.int64)
    values = np.linspace(0, largest, count + 1)
    hist[np.rint(values * 8001 / 2 + 4000).astype(int).clip(0, 8000)] = 3
    step = float(mse_threshold(hist, largest, 9)) / 256
    assert np.abs(values / step - np.rint(values / step)).max() < 0.03


def test_mse_threshold_puts_values_that_pile_up_at_the_maximum_on_the_last_level() -> None:
    hist = np.zeros(8001, np.int64)
    hist[-1] = 9000  # a relu6 that saturates
    hist[4000:-1:13] = 1

    assert mse_threshold(hist, 6.0, 8) == np.float32(6.0 * 128 / 127)


def test_values_that_are_not_finite_are_reported_with_the_tensor() -> None:
    collector = RangeCollector(POINTS)
    rows = batches(1)[0]
    rows[1][0, 0, 0, :3] = [np.nan, np.inf, -np.nan]
    collector.update(rows)
    with pytest.raises(CalibrationError, match=r"3 of .* values are NaN or infinite") as caught:
        collector.result()
    assert caught.value.where == "1: relu"


def test_a_tensor_that_comes_in_batches_of_any_size_is_counted_alike() -> None:
    x = np.random.default_rng(3).normal(size=9000).astype(np.float32)
    x[:3] = 0.0, -0.0, -7.0
    points = PointMap(("0: x",), np.array([0]), np.array([INPUT]), (("",),))
    found = []
    for cuts in ([], [100, 4100, 8900], [4500], [3000, 6000]):
        collector = RangeCollector(points)
        for part in np.split(x, cuts):
            collector.update([part])
        found.append(collector.result())
    for other in found[1:]:
        same_bits(found[0], other)


def test_shards_over_different_ranges_do_not_merge() -> None:
    rows = batches()
    first, second = collect(rows, [slice(0, 6)]), collect(rows, [slice(6, 12)])
    with pytest.raises(CalibrationError, match="different ranges"):
        first.merge(second)


def test_both_rounds_are_needed_for_thresholds() -> None:
    collector = RangeCollector(POINTS)
    collector.update(batches(1)[0])
    stats = collector.result()
    assert activation_scales(stats, QConfig(calibrate_mode="max"))[0] > 0
    with pytest.raises(CalibrationError, match="needs both rounds"):
        activation_scales(stats, QConfig(calibrate_mode="kl_divergence"))
