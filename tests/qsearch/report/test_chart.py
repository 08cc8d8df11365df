"""Axes and legends of the plots, for few values, many series and narrow screens."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from qsearch.report.plots.chart import Chart, axis

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("last", "wanted", "ticks"),
    [
        (1, 5, [0, 1]),
        (7, 5, [0, 2, 4, 6]),
        (15, 6, [0, 5, 10, 15]),
        (9999, 4, [0, 5000]),
    ],
)
def test_ticks_of_counts_are_counts(last: int, wanted: int, ticks: list[int]) -> None:
    assert axis([0, last], 0, 400, whole=True).ticks(wanted) == ticks


def test_a_single_share_is_not_shown_below_impossible_ones() -> None:
    assert axis([98.5], 0, 100, most=100.0).high == 100.0
    assert axis([100.0], 0, 100, most=100.0).at(100.0) == 100
    assert axis([98.5], 0, 100).high > 100.0


@pytest.mark.parametrize("width", [240, 320, 640])
def test_a_legend_and_the_name_of_the_axis_have_rows_of_their_own(width: int) -> None:
    names = ["complete", "pruned", "infeasible", "Pareto front"]
    chart = Chart("one", width, 220)
    chart.legend([("front", "ring", words) for words in names])
    x, y = chart.x_axis([0, 1]), chart.y_axis([0, 1])
    chart.frame(x, y, "hardware traffic (bytes)", "top-1 (%)")
    root = ElementTree.fromstring(chart.svg())
    rows: dict[str, float] = {
        str(t.text): float(t.get("y", math.nan)) for t in root.iter(f"{SVG}text")
    }
    assert rows["hardware traffic (bytes)"] < min(rows[words] for words in names)
    assert max(rows[words] for words in names) <= chart.height
    assert max(y.begin, y.end) < rows["hardware traffic (bytes)"] - 20
