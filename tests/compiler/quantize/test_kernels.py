"""Counting kernels: C and numpy give the bits of the definitions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.quantize.calibration.stats import bin_edges
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.kernels.numpy_kernels import (
    MOST_STEPS,
    UPPER_COUNTERS,
    Kernels,
    key_value,
    log_series,
    order_key,
)
from tests.each import each
from tests.needs import skip


@pytest.fixture(params=["c", "numpy"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return choose_kernels(request.param)
    except CodegenError:
        skip("a C compiler")


def many_values(seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(20011).astype(np.float32) * np.float32(3)
    values[rng.random(values.size) < 0.4] = 0.0
    values[:6] = [-0.0, 1e-40, -1e-45, 7.5, -9.25, 3e-5]
    return values


def test_ranges_hold_extremes_and_upper_halves_of_the_patterns(kernels: Kernels) -> None:
    values = many_values()
    counts = np.zeros(UPPER_COUNTERS, np.int64)
    keys = np.array([2**31 - 1, -(2**31)], np.int32)
    kernels.count_ranges(values, counts, keys)
    kernels.count_ranges(values[:100].copy(), counts, keys)
    low, high = key_value(keys)
    assert (low, high) == (values.min(), values.max())
    both = np.concatenate([values, values[:100]])
    upper = np.abs(both).view(np.uint32) >> 16
    np.testing.assert_array_equal(counts, np.bincount(upper, minlength=UPPER_COUNTERS))


def test_order_keys_sort_like_floats_and_go_back() -> None:
    values = np.array([-np.inf, -2.5, -1e-45, -0.0, 0.0, 1e-40, 3.0, np.inf], np.float32)
    keys = order_key(values)
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    np.testing.assert_array_equal(key_value(keys).view(np.int32), values.view(np.int32))


@pytest.mark.parametrize("largest", [1.0, 11.3, 1e-38, 1e-44, 3e38, 0.0])
def test_histogram_follows_the_float32_edges_exactly(kernels: Kernels, largest: float) -> None:
    edges = bin_edges(np.float32(largest), 801)
    rng = np.random.default_rng(5)
    span = np.abs(edges[-1])
    inside = (rng.uniform(-1, 1, 5000) * float(span)).astype(np.float32)
    # every edge itself and its neighbours, where a rounded index is most likely to be off by one
    with np.errstate(over="ignore", under="ignore"):
        near = np.concatenate([edges, np.nextafter(edges, span), np.nextafter(edges, -span)])
    values = np.clip(np.concatenate([inside, near]), -span, span)
    counts = np.zeros(801, np.int64)
    kernels.histogram(values, edges, counts)
    index = np.searchsorted(edges, values, side="right") - 1
    expected = np.bincount(np.clip(index, 0, 800), minlength=801)
    np.testing.assert_array_equal(counts, expected)


COUNTED = """
import resource, sys
import numpy as np
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.calibration.stats import bin_edges
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
kernels, largest = choose_kernels(sys.argv[1]), np.float32(sys.argv[2])
values = np.random.default_rng(0).uniform(-1, 1, 1 << 21).astype("float32") * largest
counts = np.zeros(80_001, np.int64)
kernels.histogram(values, bin_edges(largest, 80_001), counts)
assert counts.sum() == values.size
"""


@pytest.mark.parametrize("largest", ["1e-38", "3.4e38"])
def test_a_histogram_whose_bins_cannot_be_guessed_is_no_walk_over_all_edges(
    kernels: Kernels, largest: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, kernels.name, largest], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 4099])
def test_every_value_of_a_row_is_counted_once_whatever_its_length(
    kernels: Kernels, size: int
) -> None:
    values = np.resize(many_values(7), size)
    values[::3] = 9.25  # many at the last edge, as behind a relu6
    values[0] = -9.25
    edges = bin_edges(np.float32(9.25), 801)
    counts = np.zeros(801, np.int64)
    uppers = np.zeros(UPPER_COUNTERS, np.int64)
    keys = np.array([2**31 - 1, -(2**31)], np.int32)
    for _ in range(2):
        kernels.histogram(values, edges, counts)
        kernels.count_ranges(values, uppers, keys)
    index = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, 800)
    np.testing.assert_array_equal(counts, 2 * np.bincount(index, minlength=801))
    upper = np.abs(values).view(np.uint32) >> 16
    np.testing.assert_array_equal(uppers, 2 * np.bincount(upper, minlength=UPPER_COUNTERS))
    assert tuple(key_value(keys)) == (values.min(), values.max())


def test_lower_halves_are_collected_for_the_asked_buckets_only(kernels: Kernels) -> None:
    values = many_values(3)
    patterns = np.abs(values).view(np.uint32)
    upper = patterns >> 16
    buckets = np.unique(upper)[[0, 5, -3, -1]].astype(np.int32)
    found = kernels.collect_low(values, buckets)
    for bucket, (low, times) in each(zip(buckets, found, strict=True)):
        expected = patterns[upper == bucket] & 0xFFFF
        np.testing.assert_array_equal(np.sort(np.repeat(low, times)), np.sort(expected))


def test_a_value_that_repeats_is_collected_as_often_as_it_occurs(kernels: Kernels) -> None:
    values = np.where(np.arange(5000) % 7 == 0, np.float32(6.0), np.float32(1.5)).astype("float32")
    values[[100, 4000]] = [6.001, -6.0]
    ((low, times),) = kernels.collect_low(values, np.array([0x40C0], np.int32))
    found = np.zeros(1 << 16, np.int64)
    np.add.at(found, low, times)
    six, more = (int(np.float32(x).view(np.uint32)) & 0xFFFF for x in (6.0, 6.001))
    assert (found[six], found[more], found.sum()) == (716, 1, 717)


def test_no_bucket_collects_nothing(kernels: Kernels) -> None:
    assert kernels.collect_low(many_values(), np.zeros(0, np.int32)) == []


def test_logarithm_is_within_two_units_of_the_library() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-60, 60, 4000)), 1 + rng.uniform(-1e-6, 1e-6, 4000)])
    # absolute near 1, where e*ln2 and the series do not cancel because e is 0
    assert np.abs(log_series(x) - np.log(x)).max() <= 2 * np.spacing(60.0)
    near_one = x[np.abs(x - 1) < 1e-5]
    assert (np.abs(log_series(near_one) / np.log(near_one) - 1) < 1e-15).all()


def test_unknown_kernels_are_refused_with_the_legal_names() -> None:
    with pytest.raises(CodegenError, match="unknown kernels 'cuda'"):
        choose_kernels("cuda")  # type: ignore[arg-type]


def test_steps_are_quotients_rounded_half_to_even(kernels: Kernels) -> None:
    rng = np.random.default_rng(11)
    for shape in ((3, 5, 41), (7, 12, 1)):
        values = rng.integers(-400, 400, shape).astype(np.float32) / 2
        values[0, :2] = [[np.inf], [-1e9]]
        units = rng.choice([0.5, 1.0, 0.3, 1e-2], shape[1])
        steps = np.rint(values.astype(np.float64) / units[:, None])
        wanted = np.clip(steps, -MOST_STEPS, MOST_STEPS)
        np.testing.assert_array_equal(kernels.steps(values, units), wanted)


def test_what_is_no_number_has_no_steps(kernels: Kernels) -> None:
    values = np.ones((1, 9, 36), np.float32)
    assert kernels.steps(values, np.ones(9)) is not None
    values[0, 8, 35] = np.nan
    assert kernels.steps(values, np.ones(9)) is None


def drawn_words(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int16]:
    """Steps, and differences of two; half of them as large as they can be."""
    most = np.array([MOST_STEPS, 2 * MOST_STEPS]).reshape(2, *[1] * len(shape))
    drawn = rng.integers(-most, most + 1, (2, *shape))
    return np.where(rng.random(shape) < 0.5, most, drawn).astype(np.int16)


@pytest.mark.parametrize(("taps", "positions"), [(25, 5000), (9, 32), (33, 1), (1, 5), (4, 2048)])
def test_products_are_those_of_two_taps(kernels: Kernels, taps: int, positions: int) -> None:
    rng = np.random.default_rng(taps)
    lengths = [positions // 3, positions - positions // 3]  # of two runs
    data = rng.integers(-MOST_STEPS, MOST_STEPS + 1, (2, 2, 3, 50)).astype(np.int16)
    data[:, :, :, ::2] = MOST_STEPS * np.sign(data[:, :, :, ::2])
    reads = [rng.integers(-1, 50, (taps, length)).astype(np.int32) for length in lengths]
    products, crossed = np.ones((2, 3, taps, taps), np.int64)
    sums = np.ones((2, 3, taps), np.int64)
    into = products, crossed, (sums[0], sums[1])
    kernels.products(list(data[0]), list(data[1]), (50, reads), *into)
    zeroed = np.append(data, np.zeros((2, 2, 3, 1), np.int16), axis=3).astype(np.int64)  # at -1
    taken = [zeroed[:, run][:, :, places] for run, places in enumerate(reads)]
    read, wanted = np.concatenate(taken, axis=3)
    more = wanted - read
    lower = np.tril(np.einsum("gkp,glp->gkl", read, read))
    np.testing.assert_array_equal(np.tril(products - 1), lower)
    np.testing.assert_array_equal(crossed - 1, np.einsum("gkp,glp->gkl", more, read))
    np.testing.assert_array_equal(sums - 1, [read.sum(2), more.sum(2)])


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("counts", [(30, 40), (40, 0)])
@pytest.mark.parametrize("taps", [1, 3, 70])
def test_shrunk_products_count_as_far_as_both_halves_confirm_them(
    taps: int, counts: tuple[int, int], symmetric: bool, centred: bool
) -> None:
    rng = np.random.default_rng(taps)
    units = rng.uniform(0.01, 0.1, (2, taps))
    shared = rng.normal(0, 400, (2, taps, 1))
    read = [drawn_words(rng, (taps, n)) // 2 + shared.astype(np.int16) for n in counts]
    more = read if symmetric else [drawn_words(rng, (taps, n)) for n in counts]
    wide = [(one.astype(np.int64), other.astype(np.int64)) for one, other in zip(more, read)]
    products = np.stack([np.einsum("gkp,glp->gkl", one, other) for one, other in wide])
    halves = np.tril(products) if symmetric else products
    sums = tuple(np.stack([each[k].sum(2) for each in wide]) for k in (0, 1))
    every = [
        kernels.shrunk(halves, sums, counts, units, symmetric, centred)  # type: ignore[arg-type]
        for kernels in (Kernels(), choose_kernels())
    ]
    np.testing.assert_array_equal(*every)

    def covariance(one: Any, other: Any) -> Any:
        apart = [x - x.mean(2, keepdims=True) for x in (one, other)]
        return np.einsum("gkp,glp->gkl", *apart) * units[:, :, None] * units[:, None] / one.shape[2]

    whole = [np.concatenate([each[k] for each in wide], axis=2) for k in (0, 1)]
    wanted = covariance(*whole)
    if counts[1]:
        alone = np.eye(taps, dtype=bool)
        off, one, other = (
            np.where(alone, 0, each) for each in (wanted, *(covariance(*each) for each in wide))
        )
        common, most = ((x * y).sum(axis=(1, 2)) for x, y in ((one, other), (off, off)))
        share = np.clip(common / np.maximum(most, 1e-300), 0, 1)[:, None, None]
        wanted = np.where(alone, wanted, share * off)
    if not centred:
        means = [each.mean(2) * units for each in whole]
        wanted = wanted + means[0][:, :, None] * means[1][:, None, :]
    # float32 results of sums that may cancel
    np.testing.assert_allclose(every[0], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_taps_that_do_not_vary_have_no_deviations(kernels: Kernels) -> None:
    """Means of products less products of means leave noise, which no Cholesky factor takes."""
    words, counts = np.array([32767, 31991, -29999], np.int64), (801, 799)
    products = np.tril(words[:, None] * words)[None]
    found = kernels.shrunk(
        np.stack([count * products for count in counts]),
        (*[np.stack([count * words[None] for count in counts])] * 2,),  # type: ignore[arg-type]
        counts,
        np.full((1, 3), 0.3),
        True,
        True,
    )
    np.testing.assert_array_equal(found, np.zeros((1, 3, 3)))


def test_errors_of_grids_are_those_of_float32_operations(kernels: Kernels) -> None:
    rng = np.random.default_rng(5)
    magnitudes = np.abs(rng.normal(0, 1, (5, 77))).astype(np.float32)
    magnitudes[:, ::5] = np.round(magnitudes[:, ::5] * 4) / 4 + np.float32(0.125)
    scale = np.array([0.25, 0.01, 0.3, 1.0, 1e-20], np.float32)
    found = np.empty_like(magnitudes)
    kernels.grid_errors(magnitudes, scale, 127.0, found)
    steps = np.minimum(np.floor(magnitudes / scale[:, None] + np.float32(0.5)), np.float32(127))
    np.testing.assert_array_equal(found, steps * scale[:, None] - magnitudes)


def rounding_case(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(2, 3, 7) weights in steps, some of them halves, and positive definite matrices."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 3, (2, 3, 7))
    rows[:, :, ::3] = np.round(rows[:, :, ::3] * 2) / 2
    root = rng.normal(0, 1, (2, 7, 7))
    return rows, root @ root.transpose(0, 2, 1) + 0.5 * np.eye(7)


Ends = tuple[int, int]


def nearest(value: float, ends: Ends) -> float:
    return float(min(max(np.trunc(value + np.copysign(0.5, value)), ends[0]), ends[1]))


@pytest.mark.parametrize("ends", [(-4, 4), (-4, 3), (-127, 127)], ids=str)
def test_columns_are_rounded_one_after_the_other(kernels: Kernels, ends: Ends) -> None:
    rows, matrix = rounding_case(3)
    factor = np.linalg.cholesky(matrix)
    free = rows + 0.25
    found = kernels.round_columns(rows, free.copy(), factor, ends)
    for group, row in each(np.ndindex(rows.shape[:2])):
        left = free[group, row].copy()
        for k in each(reversed(range(left.size))):
            assert found[group, row, k] == nearest(left[k], ends)
            left[:k] += (rows[group, row, k] - found[group, row, k]) * factor[group, k, :k]
