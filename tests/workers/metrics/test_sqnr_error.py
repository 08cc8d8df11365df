"""The standard error of an SQNR against the spread of resampled ones."""

from __future__ import annotations

import numpy as np
import pytest

from workers.metrics.registry import merge_sums
from workers.metrics.sqnr import FLOOR_DB, Sqnr, worst_output


def test_the_error_is_that_of_the_bootstrap_and_merges() -> None:
    rng = np.random.default_rng(0)
    wanted = rng.normal(size=(400, 10))
    found = wanted + rng.normal(size=(400, 10)) * rng.lognormal(-2, 0.7, (400, 1))
    metric, shards = Sqnr(), []
    for rows in np.array_split(np.arange(400), 3):
        state = metric.init()
        metric.update(state, [found[rows]], [wanted[rows]], None)
        shards.append({"sqnr": state})
    error = metric.standard_error(merge_sums(shards)["sqnr"])
    signal, noise = (wanted**2).sum(1), ((found - wanted) ** 2).sum(1)
    drawn = rng.integers(0, 400, (2000, 400))
    resampled = 10 * np.log10(signal[drawn].sum(1) / noise[drawn].sum(1))
    assert error == pytest.approx(resampled.std(), rel=0.1)


def test_sqnr_needs_a_reference_for_every_output() -> None:
    outputs = [np.ones((2, 3)), np.ones((2, 3))]
    with pytest.raises(ValueError, match="zip"):
        Sqnr().update(Sqnr().init(), outputs, outputs[:1], None)


def test_one_sample_or_equal_outputs_have_no_error() -> None:
    metric = Sqnr()
    one = metric.init()
    metric.update(one, [np.ones((1, 4))], [np.zeros((1, 4)) + 2], None)
    assert metric.standard_error(one) is None
    equal = metric.init()
    metric.update(equal, [np.ones((5, 4))], [np.ones((5, 4))], None)
    assert metric.standard_error(equal) is None


def test_an_output_that_is_not_finite_is_not_left_out_beside_a_reference_of_zeros() -> None:
    rows, zeros = np.ones((4, 3)), np.zeros((4, 2))
    metric = Sqnr()
    state = metric.init()
    metric.update(state, [rows + 0.1, zeros + np.nan], [rows, zeros], None)
    assert metric.result(state) == FLOOR_DB
    assert worst_output(state) == (1, FLOOR_DB)


def test_each_output_counts_relative_to_its_own_power() -> None:
    rng = np.random.default_rng(1)
    large, small = 100 * rng.normal(size=(64, 8)), rng.normal(size=(64, 3))
    zeros = np.zeros((64, 2))
    found = [
        large + rng.normal(size=large.shape),
        small + 0.3 * rng.normal(size=small.shape),
        zeros,
    ]
    metric, shards = Sqnr(), []
    for rows in np.array_split(np.arange(64), 2):
        state = metric.init()
        metric.update(
            state, [f[rows] for f in found], [large[rows], small[rows], zeros[rows]], None
        )
        shards.append({"sqnr": state})
    sums = merge_sums(shards)["sqnr"]
    losses = [((f - w) ** 2).sum() / (w**2).sum() for f, w in zip(found, (large, small))]
    assert metric.result(sums) == pytest.approx(-10 * np.log10(np.mean(losses)))
    assert worst_output(sums) == (1, pytest.approx(-10 * np.log10(losses[1])))
    assert metric.standard_error(sums) is not None
    alone = metric.init()
    metric.update(alone, found[:1], [large], None)
    assert metric.result(alone) == pytest.approx(-10 * np.log10(losses[0]))
    assert worst_output(alone) is None


def test_one_output_that_is_not_finite_is_the_worst_of_all() -> None:
    metric = Sqnr()
    state = metric.init()
    broken = np.full((4, 2), np.nan)
    metric.update(state, [np.ones((4, 2)), broken], [np.ones((4, 2)), np.ones((4, 2))], None)
    assert metric.result(state) == FLOOR_DB
    assert worst_output(state) == (1, FLOOR_DB)
