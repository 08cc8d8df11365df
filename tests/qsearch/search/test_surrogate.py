"""The surrogate: what it learns from few points, in which unit, and what does not bend it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from qsearch.search.space import Parameter, Params, Space
from qsearch.search.surrogate import Surrogate, distances, encoded, standardized

SPACE = Space(
    (
        Parameter("weight_granularity", ("channel", "tensor")),
        Parameter("weight_scale", ("max", "power2", "mse")),
        Parameter("calibrate_mode", ("percentile", "max", "mse")),
        Parameter("percentile", (0.9, 0.99, 0.999), (("calibrate_mode", ("percentile",)),)),
        Parameter("round_for_shift", (False, True)),
    )
)
POINTS = list(SPACE.points())
MIXED = [POINTS[place] for place in np.random.default_rng(0).permutation(len(POINTS))]
"""Sixty points in an order of no meaning."""


def additive(point: Params) -> float:
    return (
        {"max": 0.0, "power2": 1.0, "mse": 2.5}[str(point["weight_scale"])]
        + {"percentile": 0.0, "max": -1.0, "mse": 1.5}[str(point["calibrate_mode"])]
        + 0.5 * bool(point["round_for_shift"])
    )


def test_half_of_the_points_predict_the_best_of_the_others() -> None:
    tried, rest = MIXED[:30], MIXED[30:]
    fitted = Surrogate(SPACE, tried, [additive(p) for p in tried])
    mean, deviation = fitted.predict(rest)
    assert np.corrcoef(mean, [additive(p) for p in rest])[0, 1] > 0.9
    assert (deviation > 0).all()
    hopeful = [additive(rest[int(place)]) for place in np.argsort(-mean)[:4]]
    assert max(hopeful) == max(map(additive, rest))


def test_a_tried_point_promises_no_improvement() -> None:
    tried, rest = MIXED[:30], MIXED[30:]
    fitted = Surrogate(SPACE, tried, [additive(p) for p in tried])
    assert fitted.predict(tried)[1].max() < 0.3 * fitted.predict(rest)[1].max()
    assert fitted.improvement(tried).max() < fitted.improvement(rest).max()


def test_a_pending_point_lowers_the_improvement_of_similar_points() -> None:
    tried = MIXED[:12]
    fitted = Surrogate(SPACE, tried, [additive(p) for p in tried])
    rest = [p for p in POINTS if p not in tried]
    first = rest[int(np.argmax(fitted.improvement(rest)))]
    before = fitted.improvement([first])[0]
    fitted.believe(first)
    assert fitted.improvement([first])[0] < 0.5 * before


def test_how_far_a_module_collapsed_changes_nothing() -> None:
    tried = MIXED[:20]
    scores = [additive(p) if place else -8.0 for place, p in enumerate(tried)]
    one = Surrogate(SPACE, tried, scores)
    for collapsed in (-1e18, -math.inf):
        other = Surrogate(SPACE, tried, [collapsed, *scores[1:]])
        np.testing.assert_array_equal(one.predict(POINTS)[0], other.predict(POINTS)[0])


@pytest.mark.parametrize("scores", [[3.0], [1.0, 1.0, 1.0], [-math.inf, -math.inf]])
def test_equal_or_few_scores_give_a_finite_improvement(scores: list[float]) -> None:
    fitted = Surrogate(SPACE, POINTS[: len(scores)], scores)
    assert np.isfinite(fitted.improvement(POINTS)).all()


def test_scores_are_standardized_above_their_floor() -> None:
    np.testing.assert_allclose(standardized(np.array([1.0, 2.0, 3.0]))[1], 0.0)
    # 4 is the best and 2 the median, so nothing counts as less than 0.
    found = standardized(np.array([4.0, 2.0, -100.0]))
    np.testing.assert_allclose(found, standardized(np.array([4.0, 2.0, 0.0])))
    np.testing.assert_array_equal(standardized(np.array([-math.inf])), [0.0])
    np.testing.assert_array_less(*standardized(np.array([-math.inf, 7.0, 7.0]))[:2])


def test_distances_grow_with_numbers_and_not_with_names() -> None:
    rows = encoded(SPACE, POINTS)
    apart = distances(SPACE, rows, rows)
    assert apart.shape == (5, len(POINTS), len(POINTS))
    assert set(np.unique(apart[1])) == {0.0, 1.0}
    assert set(np.unique(apart[3])) == {0.0, 0.75, 1.0}
    for (i, a), (j, b) in product(enumerate(POINTS[:6]), enumerate(POINTS[:6])):
        assert (apart[:, i, j].sum() == 0) == (a == b)
