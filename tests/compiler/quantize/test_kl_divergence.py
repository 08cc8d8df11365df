"""KL thresholds: the spec's seeded distributions, intermediate values, and C against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.errors import CalibrationError, CodegenError
from compiler.quantize.calibration.stats import NUM_BINS, bin_edges
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.kernels.numpy_kernels import Kernels
from compiler.quantize.scales.kl_divergence import find_scale_by_kl, kl_candidate
from tests.needs import skip

ZERO_BIN = NUM_BINS // 2


def samples(name: str) -> NDArray[np.float32]:
    r = np.random.default_rng
    recipes = {
        "normal_s0": lambda: r(0).standard_normal(100000),
        "laplace_s1": lambda: r(1).laplace(0, 1, 50000),
        "relu_normal_s2": lambda: np.maximum(r(2).standard_normal(100000), 0),
        "uniform_s3": lambda: r(3).uniform(-1, 1, 20000),
        "student_t3_s4": lambda: r(4).standard_t(3, 50000),
        "few_s9": lambda: r(9).standard_normal(64),
        "all_zero": lambda: np.zeros(1000),
        "constant_3": lambda: np.full(1000, 3.0),
    }
    return np.asarray(recipes[name](), np.float32)


# name, threshold S, winning candidate i, divergence
EXPECTED = [
    ("normal_s0", 4.05182409, 3425, 0.0206742),
    ("laplace_s1", 8.09144211, 2967, 0.0274078),
    ("relu_normal_s2", 4.02384377, 3274, 0.0107218),
    ("uniform_s3", 0.99994266, 4000, 0.13155),
    ("student_t3_s4", 20.8636017, 1383, 0.00793087),
    ("few_s9", 2.38803029, 3787, 0.0),
    ("all_zero", 0.0159355085, 127, 0.0),
    ("constant_3", 3.0, 4000, 0.0),
]


def histogram_of(
    values: NDArray[np.float32], kernels: Kernels
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    edges = bin_edges(np.abs(values).max())
    hist = np.zeros(NUM_BINS, np.int64)
    kernels.histogram(values, edges, hist)
    return hist, edges


@pytest.fixture(params=["c", "numpy"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return choose_kernels(request.param)
    except CodegenError:
        skip("a C compiler")


@pytest.mark.parametrize(("name", "threshold", "candidate", "divergence"), EXPECTED)
def test_seeded_distributions_give_the_specified_candidate_and_threshold(
    name: str, threshold: float, candidate: int, divergence: float, kernels: Kernels
) -> None:
    hist, edges = histogram_of(samples(name), kernels)
    found, value = kl_candidate(hist, 255, kernels)
    assert found == candidate
    scale = edges[ZERO_BIN + found + 1]
    assert abs(float(scale) - threshold) <= 2 * float(np.spacing(np.float32(threshold)))
    # the case gives six digits
    assert float(value) == pytest.approx(divergence, rel=5e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["normal_s0", "few_s9"])
def test_find_scale_by_kl_is_the_winning_edge(name: str) -> None:
    expected = next(row[1] for row in EXPECTED if row[0] == name)
    assert float(find_scale_by_kl(samples(name))) == pytest.approx(expected, rel=2e-7)


def test_histogram_and_groups_of_normal_s0_have_the_specified_values(kernels: Kernels) -> None:
    hist, edges = histogram_of(samples("normal_s0"), kernels)
    assert (hist[0], hist[ZERO_BIN], hist[-1]) == (0, 37, 1)
    assert np.count_nonzero(hist) == 4999
    assert float(edges[4001]) == 0.0005914208013564348
    assert float(edges[7426]) == 4.05182409286499
    first, stop, size = ZERO_BIN - 3425, ZERO_BIN + 3426, 2 * 3425 + 1
    assert hist[: first + 1].sum() == 1
    assert hist[stop - 1] + hist[stop:].sum() == 3
    assert (size // 255, size - 254 * (size // 255)) == (26, 247)


def definition(hist: NDArray[np.int64], i: int, levels: int) -> np.float32:
    """The spec's steps 2 to 8, literally, with numpy's own float64 logarithm."""

    def total(values: NDArray[np.float32]) -> np.float32:
        return np.add.accumulate(values, dtype=np.float32)[-1]

    z = hist.size // 2
    a, b = z - i, z + i + 1
    inner = hist[a:b].copy()
    inner[0] = 0
    p = inner.astype(np.float32)
    p[0] = hist[: a + 1].sum()
    p[-1] = hist[b - 1] + hist[b:].sum()
    m = inner.size // levels
    q = np.zeros(inner.size, np.float32)
    for j in range(levels):
        group = slice(j * m, inner.size if j == levels - 1 else (j + 1) * m)
        nonzero = np.count_nonzero(inner[group])
        if nonzero:
            value = np.float32(inner[group].sum()) / np.float32(nonzero)
            q[group] = np.where(p[group] != 0, value, 0)
    for row in (q, p):
        zeros = row == 0
        filled = np.count_nonzero(~zeros)
        less = np.float32(0.0001) * np.float32(zeros.sum()) / np.float32(max(filled, 1))
        if filled == 0 or less >= 1:
            return np.float32(np.inf if row is q else 0)
        row[zeros] += np.float32(0.0001)
        row[~zeros] -= less
    p, q = p / total(p), q / total(q)
    return total(p * np.log((p / q).astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("name", ["normal_s0", "student_t3_s4", "few_s9"])
def test_divergences_equal_the_literal_definition_bit_for_bit(name: str, kernels: Kernels) -> None:
    hist, _ = histogram_of(samples(name), kernels)
    prefix = np.concatenate([[0], np.cumsum(hist)])
    filled = np.concatenate([[0], np.cumsum(hist != 0)])
    candidates = np.array([127, 128, 500, 1383, 2222, 3425, 3999, 4000], np.int32)
    found = kernels.divergences(hist, prefix, filled, candidates, 255)
    expected = np.array([definition(hist, int(i), 255) for i in candidates], np.float32)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("name", ["normal_s0", "relu_normal_s2", "few_s9"])
def test_terms_of_groups_are_their_masses_times_logarithms(name: str, kernels: Kernels) -> None:
    hist, _ = histogram_of(samples(name), kernels)
    prefix = np.concatenate([[0], np.cumsum(hist)])
    filled = np.concatenate([[0], np.cumsum(hist != 0)])
    candidates = np.arange(127, 4001, dtype=np.int32)
    p_less, q_less = np.random.default_rng(0).uniform(0, 1e-3, (2, candidates.size))
    found = kernels.group_terms(prefix, filled, candidates, 255, p_less, q_less)
    same = choose_kernels("numpy").group_terms(prefix, filled, candidates, 255, p_less, q_less)
    np.testing.assert_array_equal(found, same)
    for place in (0, 1, 500, 3873):
        i, total = int(candidates[place]), 0.0
        width = (2 * i + 1) // 255
        for begin in range(ZERO_BIN - i + width, ZERO_BIN - i + 254 * width, width):
            mass, count = (sums[begin + width] - sums[begin] for sums in (prefix, filled))
            if count:
                total += (mass - p_less[place] * count) * np.log(mass / count - q_less[place])
        np.testing.assert_allclose(found[place], total, rtol=1e-12)  # another order, another log


@pytest.mark.parametrize("seed", range(6))
def test_numpy_estimate_and_c_search_agree_on_odd_histograms(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bins, levels = (1001, 15) if seed % 2 else (2001, 63)
    density = rng.random(bins) * np.exp(-np.abs(np.arange(bins) - bins // 2) / rng.uniform(20, 400))
    hist = rng.poisson(density * 10.0 ** rng.uniform(0, 5)).astype(np.int64)
    hist[0] += 1
    assert kl_candidate(hist, levels, choose_kernels("numpy")) == kl_candidate(hist, levels)


@given(
    seed=st.integers(0, 2**32 - 1),
    bins=st.sampled_from([101, 401, 1001]),
    levels=st.sampled_from([3, 15, 31, 63]),
    total=st.floats(0, 6),
    shape=st.sampled_from(["flat", "peak", "one side", "two heaps", "rare"]),
)
@settings(max_examples=60, deadline=None)
def test_the_search_finds_the_first_of_all_candidates_with_the_least_divergence(
    seed: int, bins: int, levels: int, total: float, shape: str
) -> None:
    rng = np.random.default_rng(seed)
    distance = np.abs(np.arange(bins) - bins // 2)
    density = {
        "flat": np.ones(bins),
        "peak": np.exp(-distance / (bins / 16)),
        "one side": np.exp(-distance / (bins / 8)) * (np.arange(bins) >= bins // 2),
        "two heaps": np.exp(-np.square((distance - bins / 4) / (bins / 30))),
        "rare": rng.random(bins) < 0.05,
    }[shape]
    hist = rng.poisson(density * 10.0**total).astype(np.int64)
    hist[-1] += 1
    kernels = choose_kernels()
    candidates = np.arange(levels // 2, bins // 2 + 1, dtype=np.int32)
    prefix = np.concatenate([[0], np.cumsum(hist)])
    filled = np.concatenate([[0], np.cumsum(hist != 0)])
    every = kernels.divergences(hist, prefix, filled, candidates, levels)
    found, value = kl_candidate(hist, levels, kernels)
    assert (found, value) == (candidates[np.argmin(every)], every.min())


def test_even_bins_or_levels_are_refused() -> None:
    with pytest.raises(CalibrationError, match="256 levels in 8001 bins"):
        find_scale_by_kl([1.0, 2.0], num_quantized_bins=256)


@pytest.mark.parametrize(("values", "message"), [([], "no values"), ([1.0, np.nan], "value 1 is")])
def test_values_that_give_no_histogram_are_refused(values: list[float], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        find_scale_by_kl(values)
