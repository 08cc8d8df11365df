"""Plots whose points are trials: the history, and one measure against another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qsearch.report.measures import Measures, pareto, value_in, value_of
from qsearch.report.plots.chart import SINGLE, Axis, Chart, Mark, nothing
from qsearch.store.records import Study
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure

SHAPES: Final = {"complete": "circle", "pruned": "diamond", "infeasible": "triangle"}
"""Marker of a state; colours follow the class of the same name."""
_PERFECT: Final = 400.0


def history(study: Study, measures: Measures, points: Sequence[TrialPoint], width: int) -> str:
    """Value of every trial in order, and the best so far."""
    measure = measures.primary
    scored = [(p, value_of(measure, p)) for p in points if p.state in SHAPES]
    known = [(p, v) for p, v in scored if v is not None and _drawable(measure, v)]
    if not known:
        return nothing("Optimisation history", width, "no trial has a score yet")
    chart = Chart("Optimisation history", width, _height(width))
    complete = any(p.state == "complete" for p, _ in known)
    best_named = [("best", "line", "best so far")] if complete else []
    chart.legend([*_states(p for p, _ in known), *best_named])
    base = value_in(measure, study.baseline)
    values = [_shown(measure, v) for _, v in known]
    levels = [] if base is None or not _drawable(measure, base) else [_shown(measure, base)]
    x = chart.x_axis([0, max(p.number for p, _ in known)], whole=True)
    y = chart.y_axis([*_without_far(values), *levels], most=measure.most)
    chart.frame(x, y, "trial", measure.label)
    chart.level(levels[0] if levels else None, y, "base", "float model")
    _add_marks(chart, [(p, float(p.number), v) for (p, _), v in zip(known, values)], x, y, measure)
    sign = -1.0 if measure.smaller_is_better else 1.0
    stairs: list[tuple[float, float]] = []
    best: float | None = None
    for (point, _), value in zip(known, values):
        if point.state == "complete" and (best is None or sign * value > sign * best):
            if best is not None:
                stairs.append((x.at(point.number), y.at(best)))
            best = value
            stairs.append((x.at(point.number), y.at(value)))
    if best is not None:
        stairs.append((x.at(x.high), y.at(best)))
        chart.line(stairs, "best", f"best so far: {best:.6g}")
    return chart.svg()


def scatter(
    study: Study,
    measures: Measures,
    points: Sequence[TrialPoint],
    good: Measure,
    cost: Measure,
    width: int,
) -> str:
    """One measure against another, with the trials that no other beats in both.

    Trials that break a limit (``--max-drop``, ``--max-size``, …) are drawn, but on no front.
    """
    name = f"{good.words} and {cost.words}"
    known = [
        (p, _shown(cost, x), _shown(good, y))
        for p in points
        if p.state in SHAPES
        and (x := value_of(cost, p)) is not None
        and (y := value_of(good, p)) is not None
        and _drawable(good, y)
        and _drawable(cost, x)
    ]
    if not known:
        wanted = good.words if good == cost else f"both {good.words} and {cost.words}"
        return nothing(name, width, f"no trial has {wanted} yet")
    kept = [p for p in points if p.score is not None and measures.objective.feasible(p.score)]
    found = [place for place in pareto(kept, good, cost) if _drawable(good, place[1])]
    chart = Chart(name, width, _height(width))
    front_named = [("front", "ring", "Pareto front")] if found else []
    chart.legend([*_states(p for p, _, _ in known), *front_named])
    base = value_in(good, study.baseline)
    levels = [] if base is None or not _drawable(good, base) else [_shown(good, base)]
    xs = [x for _, x, _ in known]
    x_axis = chart.x_axis(xs, log=min(xs) > 0 and max(xs) > 50 * min(xs))
    shown = [*_without_far([y for *_, y in known]), *levels]
    y_axis = chart.y_axis(shown, most=good.most)
    chart.frame(x_axis, y_axis, cost.label, good.label)
    chart.level(levels[0] if levels else None, y_axis, "base", "float model")
    if measures.floor is not None and good == measures.accuracy:
        chart.level(_shown(good, measures.floor), y_axis, "floor", "least allowed")
    front = [(x_axis.at(_shown(cost, x)), y_axis.at(_shown(good, y)), n) for x, y, n in found]
    stairs: list[tuple[float, float]] = []
    for x, y, _ in front:
        if stairs:
            stairs.append((x, stairs[-1][1]))
        stairs.append((x, y))
    chart.line(stairs, "front", f"Pareto front, {len(front)} trials")
    _add_marks(chart, known, x_axis, y_axis, good, cost)
    for x, y, number in front:
        chart.parts.append(
            f'<circle class="ring" data-front="{number}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
        )
    return chart.svg()


def _add_marks(
    chart: Chart,
    places: Sequence[tuple[TrialPoint, float, float]],
    x: Axis,
    y: Axis,
    measure: Measure,
    cost: Measure | None = None,
) -> None:
    for state, shape in SHAPES.items():
        marks = [
            Mark(px, py, p.number, _title(p, measure, py, cost, px))
            for p, px, py in places
            if p.state == state
        ]
        chart.marks(marks, x, y, state, shape, many=len(places) > SINGLE)


def _states(points: Iterable[TrialPoint]) -> list[tuple[str, str, str]]:
    """Class, shape and words of the states that some point has."""
    present = {point.state for point in points}
    return [(state, shape, state) for state, shape in SHAPES.items() if state in present]


def _title(
    point: TrialPoint, measure: Measure, value: float, cost: Measure | None, at: float
) -> str:
    also = "" if cost is None else f"\n{cost.words} {at:.6g} {cost.unit}"
    return f"trial {point.number}, {point.state}\n{measure.words} {value:.6g} {measure.unit}{also}"


def _shown(measure: Measure, value: float) -> float:
    shown = measure.shown(value)
    assert shown is not None
    return shown


def _drawable(measure: Measure, value: float) -> bool:
    """An infinite SQNR has no place on an axis of decibels."""
    return not measure.is_infinite(value)


def _without_far(values: Sequence[float]) -> list[float]:
    """The values whose neighbourhood is worth looking at: a collapsed trial may stand at the edge.

    Below the lower quartile by more than six times the spread, a value does not stretch the axis.
    """
    ordered = sorted(values)
    if len(ordered) < 8:
        return ordered
    low, high = ordered[len(ordered) // 4], ordered[-1]
    reach = low - 6 * max(high - low, 1e-9 * max(abs(high), 1.0))
    return [v for v in ordered if v >= reach]


def _height(width: int) -> int:
    return int(min(max(0.5 * width, 220), 340))
