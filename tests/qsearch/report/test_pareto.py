"""Fronts and hypervolumes against their definitions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsearch.report.build import intervals, layers_told, wilson
from qsearch.report.pareto import extremes, front
from qsearch.search.objectives import Objective
from qsearch.store.records import Outcome, Trial
from tests.benchmarks.hypervolume import hypervolume
from tests.each import each

SMALL = st.integers(0, 4)


def finished(number: int, score: dict[str, float]) -> Trial:
    outcome = Outcome("complete", {**score}, 64)
    return Trial(
        number=number,
        batch=0,
        qconfig={},
        params={},
        config_hash=f"{number:064}",
        work_hash=f"{number:064}",
        id=number,
        study_id=1,
        outcome=outcome,
        created_at=0.0,
        started_at=0.0,
        finished_at=1.0,
    )


@st.composite
def point_sets(draw: st.DrawFn) -> list[tuple[float, ...]]:
    size = draw(st.integers(1, 3))
    return draw(st.lists(st.tuples(*[SMALL.map(float)] * size), min_size=1, max_size=6))


@given(point_sets())
def test_the_volume_is_that_of_the_unit_cells_below_some_point(
    points: list[tuple[float, ...]],
) -> None:
    axes = len(points[0])
    cells = sum(
        any(all(c < p for c, p in zip(cell, point, strict=True)) for point in points)
        for cell in product(range(4), repeat=axes)
    )
    assert hypervolume(points, (0.0,) * axes) == pytest.approx(cells)
    assert hypervolume(front(points), (0.0,) * axes) == pytest.approx(cells)


@given(point_sets())
def test_the_front_is_what_no_other_equals_or_beats(points: list[tuple[float, ...]]) -> None:
    kept = front(points)
    for point in each(set(points)):
        beaten = any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True))
            for other in points
        )
        assert (point in kept) is not beaten


def test_points_at_or_below_the_reference_span_nothing() -> None:
    assert hypervolume([(1.0, 0.0), (-1.0, 5.0)], (0.0, 0.0)) == 0.0
    assert hypervolume([], (0.0,)) == 0.0


def test_the_smallest_and_the_fastest_keep_all_limits() -> None:
    objective = Objective("top1", ("size",), at_most=(("latency", 5.0),))

    def trial(number: int, sqnr: float, size: float, latency: float, kept: float = 1.0) -> Trial:
        figures = {"sqnr_db": sqnr, "model_bytes": size, "latency_ms": latency}
        return finished(number, {"top1": 0.9, "keeps_accuracy": kept, **figures})

    trials = [
        trial(0, 30.0, 100.0, 4.0),
        trial(1, 20.0, 80.0, 4.5),
        trial(2, 25.0, 80.0, 4.9),
        trial(3, 20.0, 50.0, 4.0, kept=0.0),
        trial(4, 20.0, 50.0, 6.0),
    ]
    found = extremes(trials, objective)
    assert {name: one.number for name, one in found.items()} == {"smallest": 1, "fastest": 0}
    assert extremes(trials[3:], objective) == {}


def test_intervals_of_accuracies_are_wilsons() -> None:
    low, high = wilson(0.9, 100)
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
    assert wilson(1.0, 10)[1] == pytest.approx(1.0)
    assert wilson(0.0, 10)[0] == pytest.approx(0.0, abs=1e-12)


def test_scores_without_a_value_have_no_interval() -> None:
    found = intervals({"top1": None, "agreement": 0.5, "sqnr_db": 20.0}, 50)
    assert list(found) == ["agreement"]
    exact = intervals({"sqnr_db": 20.0, "sqnr_db_error": 0.5}, None)
    assert exact["sqnr_db"] == pytest.approx((19.02, 20.98), abs=0.001)


def test_layers_are_told_by_what_they_share() -> None:
    own = {f"conv_{n}": {"nbit_weight": 4, "nbit_input": 8 if n else 16} for n in range(6)}
    assert layers_told({"layers": own}).split("; ") == [
        "nbit_weight=4 in conv_0, conv_1, conv_2 and 3 more",
        "nbit_input=16 in conv_0",
        "nbit_input=8 in conv_1, conv_2, conv_3 and 2 more",
    ]
    assert layers_told({"layers": {}}) == layers_told({}) == ""
