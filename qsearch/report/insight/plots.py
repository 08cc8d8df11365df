"""Row plots as inline SVG: a label, then bars or markers along one axis, a row per layer or point.

Series differ by shape as well as by colour, so that no reader depends on hue. Colours are CSS
variables of the page, which sets them for light and dark. Everything a model says of itself is
escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 380
LABEL = 132
RIGHT = 46
ROW = 16
TOP = 22
LABEL_LETTERS = 22
SHAPES = ("circle", "square", "triangle", "diamond", "cross")
"""Marker shapes in the order of series; colours follow the same order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a label, and per series a value or None where there is none to draw.

    ``chosen`` is the series to ring; ``note`` the text at the end of the row.
    """

    label: str
    values: tuple[float | None, ...]
    note: str = ""
    chosen: int | None = None


def bars(rows: Sequence[Row], name: str, unit: str) -> str:
    """One bar per row from zero; a missing value fills the row with an open bar."""
    top = _ceiling([row.values[0] for row in rows])
    parts = _frame(rows, top, unit)
    for index, row in enumerate(rows):
        value = row.values[0]
        length = (WIDTH - LABEL - RIGHT) * (1.0 if value is None else _inside(value, top) / top)
        kind = "open" if value is None else "bar"
        parts.append(
            f'<rect class="{kind}" x="{LABEL}" y="{TOP + index * ROW + 3}" '
            f'width="{length:.1f}" height="{ROW - 6}"><title>{_title(row)}</title></rect>'
        )
    return _svg(parts, len(rows), name)


def markers(rows: Sequence[Row], name: str, unit: str, *, top: float | None = None) -> str:
    """A marker per series in every row; values beyond ``top`` stand at the edge."""
    limit = _ceiling([v for row in rows for v in row.values]) if top is None else top
    parts = _frame(rows, limit, unit)
    for index, row in enumerate(rows):
        y = TOP + index * ROW + ROW / 2
        places = [None if v is None else _place(v, limit) for v in row.values]
        known = [x for x in places if x is not None]
        if len(known) > 1:
            parts.append(
                f'<line class="span" x1="{min(known):.1f}" x2="{max(known):.1f}" '
                f'y1="{y}" y2="{y}"/>'
            )
        for series, x in enumerate(places):
            if x is None:
                continue
            if series == row.chosen:
                parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y}" r="6"/>')
            parts.append(f'<g class="s{series}">{_shape(SHAPES[series], x, y)}</g>')
        parts.append(
            f'<rect class="hit" x="0" y="{y - ROW / 2}" width="{WIDTH}" height="{ROW}">'
            f"<title>{_title(row)}</title></rect>"
        )
    return _svg(parts, len(rows), name)


def legend(names: Sequence[str]) -> str:
    """What the shapes mean, as an HTML list."""
    items = "".join(
        f'<li><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">'
        f'<g class="s{i}">{_shape(SHAPES[i], 7, 7)}</g></svg> {escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _frame(rows: Sequence[Row], top: float, unit: str) -> list[str]:
    """Axis, grid and labels."""
    bottom = TOP + len(rows) * ROW
    parts = []
    for step in range(5):
        value = top * step / 4
        x = _place(value, top)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{WIDTH - 2}" y="{TOP - 8}" text-anchor="end">{escape(unit)}</text>')
    for index, row in enumerate(rows):
        y = TOP + index * ROW + ROW / 2 + 4
        short = row.label
        if len(short) > LABEL_LETTERS:
            short = short[: LABEL_LETTERS - 1] + "…"
        parts.append(f'<text x="{LABEL - 6}" y="{y}" text-anchor="end">{escape(short)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 5}" y="{y}">{escape(row.note)}</text>')
    return parts


def _svg(parts: Sequence[str], rows: int, name: str) -> str:
    height = TOP + rows * ROW + 6
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(name, quote=True)}">{"".join(parts)}</svg>'
    )


def _title(row: Row) -> str:
    return escape(f"{row.label} {row.note}".strip())


def _inside(value: float, top: float) -> float:
    return min(max(value, 0.0), top)


def _place(value: float, top: float) -> float:
    return LABEL + (WIDTH - LABEL - RIGHT) * _inside(value, top) / top


def _ceiling(values: Sequence[float | None]) -> float:
    """A round number at or above every value, divisible by four into round numbers."""
    largest = max((v for v in values if v is not None), default=0.0)
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    for factor in (1, 2, 4, 6, 8):
        if factor * power >= largest:
            return factor * power
    return 10 * power


def _shape(kind: str, x: float, y: float) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y}" r="3.5"/>'
    if kind == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3}" width="6" height="6"/>'
    if kind == "triangle":
        return f'<path d="M{x - 4:.1f} {y + 3} h8 l-4 -7 z"/>'
    if kind == "diamond":
        return f'<path d="M{x:.1f} {y - 4.5} l4 4.5 l-4 4.5 l-4 -4.5 z"/>'
    return f'<path class="stroke" d="M{x - 3:.1f} {y - 3} l6 6 m0 -6 l-6 6"/>'
