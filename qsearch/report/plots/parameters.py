"""Plots of the searched parameters: importances, slices, parallel coordinates."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final

from qsearch.report.measures import value_of
from qsearch.report.plots.chart import SINGLE, Chart, Mark, axis, nothing
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure

LINES: Final = 250
"""Trials in parallel coordinates: the best and an even choice of the rest."""
PARAMETERS: Final = 10
"""Parameters in parallel coordinates, the most important ones."""
_ROW: Final = 22


def importances(values: Mapping[str, float], measure: Measure, width: int) -> str:
    """A bar per parameter, the most important one first; values add up to one."""
    name = f"Importance of parameters for {measure.words}"
    if not values:
        return nothing(name, width, "importances need some complete trials that differ")
    ordered = sorted(values.items(), key=lambda item: -item[1])[:20]
    label = min(max(len(n) for n, _ in ordered) * 6.4 + 8, width * 0.42)
    chart = Chart(name, width, int(10 + _ROW * len(ordered)), left=label, right=46, top=4, bottom=4)
    top = max(max(values.values()), 1e-9)
    for index, (parameter, value) in enumerate(ordered):
        y = 6 + index * _ROW
        chart.text(label - 6, y + 13, parameter, "end", label - 6)
        length = max((width - label - chart.right) * value / top, 1.0)
        chart.parts.append(
            f'<rect class="bar" data-parameter="{escape(parameter, quote=True)}" x="{label:.1f}" '
            f'y="{y + 3}" width="{length:.1f}" height="{_ROW - 8}" rx="2">'
            f"<title>{escape(parameter)}: {value:.3f}</title></rect>"
        )
        chart.text(label + length + 6, y + 13, f"{value:.2f}", "soft")
    return chart.svg()


def slices(points: Sequence[TrialPoint], parameter: str, measure: Measure, width: int) -> str:
    """The measure over the values of one parameter: points, and a line at each value's best."""
    name = f"{measure.words} over {parameter}"
    known = [
        (p, p.params[parameter], shown)
        for p in points
        if p.state == "complete"
        and parameter in p.params
        and (shown := measure.shown(value_of(measure, p))) is not None
        and not measure.is_infinite(shown)
    ]
    if not known:
        return nothing(name, width, "no complete trial chose it yet")
    values = ordered_values(value for _, value, _ in known)
    chart = Chart(name, width, 220)
    y = chart.y_axis([shown for *_, shown in known], most=measure.most)
    x = axis([-0.5, len(values) - 0.5], chart.left, width - chart.right, tight=True)
    place = {value: float(i) for i, value in enumerate(values)}
    chart.frame(None, y, "", measure.label)
    step = (width - chart.left - chart.right) / len(values)
    room = step - 6
    half = min(room / 2, 26)
    best = min if measure.smaller_is_better else max
    for value, words in zip(values, _short(values), strict=True):
        at = x.at(place[value])
        chart.text(at, chart.height - chart.bottom + 15, words, "mid", room)
        reached = y.at(best(shown for _, other, shown in known if str(other) == value))
        chart.line([(at - half, reached), (at + half, reached)], "best")
    chart.text(width - chart.right, chart.height - 5, parameter, "end soft")
    jitter = min(0.18, 6.0 / max(len(known), 1) ** 0.5, half / step)
    marks = [
        Mark(
            place[str(value)] + jitter * ((p.number * 0.618034) % 1 - 0.5) * 2,
            shown,
            p.number,
            f"trial {p.number}\n{parameter} = {value}\n{measure.words} {shown:.6g} {measure.unit}",
        )
        for p, value, shown in known
    ]
    chart.marks(marks, x, y, "complete", "circle", many=len(marks) > SINGLE)
    return chart.svg()


def parallel(
    points: Sequence[TrialPoint], parameters: Sequence[str], measure: Measure, width: int
) -> str:
    """A line per trial through the values of its parameters, coloured by how good it is."""
    name = f"Parallel coordinates, {measure.words}"
    known = [
        (p, shown)
        for p in points
        if p.state == "complete"
        and (shown := measure.shown(value_of(measure, p))) is not None
        and not measure.is_infinite(shown)
    ]
    if not known or not parameters:
        return nothing(name, width, "no complete trial yet")
    sign = -1.0 if measure.smaller_is_better else 1.0
    known.sort(key=lambda pair: sign * pair[1])
    shown_ones = known[:: -(-len(known) // LINES)]
    if known[-1] not in shown_ones:
        shown_ones.append(known[-1])
    most = max(2, int(width / 95))
    names = list(parameters)[: min(PARAMETERS, most)]
    chart = Chart(name, width, 280, left=40, right=52, top=16, bottom=52)
    bottom = chart.height - chart.bottom
    step = (width - chart.left - chart.right) / len(names)
    places: list[dict[str, float]] = []
    for parameter in names:
        values = ordered_values(p.params[parameter] for p, _ in known if parameter in p.params)
        gap = (bottom - chart.top) / max(len(values), 1)
        places.append({value: bottom - gap * (i + 0.5) for i, value in enumerate(values)})
    y = axis([shown for _, shown in known], bottom, chart.top, most=measure.most)
    count = len(shown_ones)
    for rank, (point, shown) in enumerate(shown_ones):
        path = [
            (chart.left + step * i, places[i][str(point.params[parameter])])
            for i, parameter in enumerate(names)
            if parameter in point.params
        ]
        path.append((width - chart.right, y.at(shown)))
        shade = min(4, 5 * rank // count)
        # One line carries the number: the whole path is what the pointer finds.
        d = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in path)
        chart.parts.append(
            f'<path class="way shade{shade}" data-trial="{point.number}" d="{d}">'
            f"<title>trial {point.number}: {shown:.6g} {measure.unit}</title></path>"
        )
    for i, parameter in enumerate(names):
        at = chart.left + step * i
        chart.parts.append(f'<path class="rule" d="M{at:.1f} {chart.top:g}V{bottom:g}"/>')
        anchor = "mid" if i else ""
        x = at if i else max(at - 34, 2)
        chart.text(x, chart.height - (32 if i % 2 else 16), parameter, f"{anchor} soft", 1.9 * step)
        for value, where in places[i].items():
            chart.text(at + 5, where + 4, value, "halo small", step - 8)
    end = width - chart.right
    chart.parts.append(f'<path class="rule" d="M{end:.1f} {chart.top:g}V{bottom:g}"/>')
    for tick in y.ticks(5):
        chart.text(end + 5, y.at(tick) + 4, f"{tick:.4g}", "small")
    chart.text(width - 4, chart.height - 16, measure.words, "end soft", 110)
    return chart.svg()


def ordered_values(values: Any) -> list[str]:
    """Distinct values as text: numbers by size, then words."""
    found = {str(value): value for value in values}

    def place(text: str) -> tuple[int, float, str]:
        value = found[text]
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return (0, float(value), "") if numeric else (1, 0.0, text)

    return sorted(found, key=place)


def _short(values: Sequence[str]) -> list[str]:
    """Numbers with as few digits as tell them apart well; words as they are."""
    numbers: dict[str, float] = {}
    for text in values:
        with contextlib.suppress(ValueError):
            numbers[text] = float(text)
    ordered = sorted(numbers.values())
    near = min((b - a for a, b in pairwise(ordered)), default=0.0) / 10
    for digits in range(2, 7):
        words = {text: f"{number:.{digits}g}" for text, number in numbers.items()}
        if all(abs(float(words[text]) - number) <= near for text, number in numbers.items()):
            return [words.get(text, text) for text in values]
    return list(values)
