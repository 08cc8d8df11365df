"""Axes, grid and marks of one plot.

Series differ by shape and colour; long series are one path, so ten thousand points stay quick to
draw. Every text is escaped. Sizes are pixels at the width that was asked for, so letters keep
their size on a telephone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

SINGLE: Final = 1200
"""Up to so many points are elements of their own, each with a title."""
RADIUS: Final = 3.5
_LETTER: Final = 6.3
"""Mean width of a letter at 11 pixels."""
_LEGEND: Final = 16
"""Height of a row of the legend."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One point: place in data units, the trial it stands for, what a reader is told of it."""

    x: float
    y: float
    trial: int
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear or logarithmic scale from data to pixels; ticks, of integers if ``whole``."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value; outside ones are put at the edge."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, here = math.log10(low), math.log10(high), math.log10(here)
        return self.begin + (self.end - self.begin) * (here - low) / (high - low)

    def ticks(self, wanted: int) -> list[float]:
        """Round values inside the range."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            found = [10.0**p for p in powers]
            if len(found) >= 2:
                step = math.ceil(len(found) / max(wanted, 1))
                return found[::step]
        distance = _round_step((self.high - self.low) / max(wanted, 1), self.whole)
        first = math.ceil(self.low / distance - 1e-9)
        count = math.floor(self.high / distance + 1e-9) - first + 1
        return [(first + i) * distance for i in range(min(count, 20))]


def axis(
    values: Iterable[float],
    begin: float,
    end: float,
    *,
    log: bool = False,
    zero: bool = False,
    tight: bool = False,
    whole: bool = False,
    most: float = math.inf,
) -> Axis:
    """An axis over all values with a little room.

    Args:
        log: logarithmic, where all values are positive.
        zero: it begins at zero.
        tight: it ends at the outermost values, without room.
        whole: values are counts: tight, ticks at integers.
        most: what no value exceeds, so that a single one is not shown below impossible ones.
    """
    known = [v for v in values if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log and low > 0:
        return Axis(low / 1.1, high * 1.1 if high > low else low * 10, begin, end, log=True)
    if zero:
        low = min(0.0, low)
    tight = tight or whole
    if high <= low:
        pad = abs(low) * 0.05 or 1.0
        low, high = (low, high + pad) if zero or tight else (low - pad, min(high + pad, most))
    elif not tight:
        room = (high - low) * 0.06
        low, high = (low if zero and low == 0 else low - room), high + room
    return Axis(low, high, begin, end, whole=whole)


@dataclass(slots=True)
class Chart:
    """The parts of one SVG.

    Args:
        name: what screen readers say it is.
        width, height: pixels.
        left, right, top, bottom: margins.
    """

    name: str
    width: int
    height: int
    left: float = 52
    right: float = 14
    top: float = 12
    bottom: float = 38
    parts: list[str] = field(default_factory=list)

    def x_axis(self, values: Iterable[float], **options: Any) -> Axis:
        """A scale over the plot's width; options are those of ``axis``."""
        return axis(values, self.left, self.width - self.right, **options)

    def y_axis(self, values: Iterable[float], **options: Any) -> Axis:
        """A scale over the plot's height, upwards; options are those of ``axis``."""
        return axis(values, self.height - self.bottom, self.top, **options)

    def frame(self, x: Axis | None, y: Axis, x_label: str, y_label: str) -> None:
        """Grid lines, tick labels and names of both axes; no ticks along x where it is None."""
        bottom, right = self.height - self.bottom, self.width - self.right
        for value in y.ticks(max(2, int((bottom - self.top) / 44))):
            at = y.at(value)
            self.parts.append(
                f'<path class="grid" d="M{self.left:g} {at:.1f}H{right:g}"/>'
                f'<text x="{self.left - 6:g}" y="{at + 4:.1f}" class="end">{number(value)}</text>'
            )
        if x is not None:
            for value in x.ticks(max(2, int((right - self.left) / 84))):
                at = x.at(value)
                self.parts.append(
                    f'<path class="grid faint" d="M{at:.1f} {self.top:g}V{bottom:g}"/>'
                    f'<text x="{at:.1f}" y="{bottom + 15:g}" class="mid">{number(value)}</text>'
                )
        self.text(right, bottom + 33, x_label, "end soft")
        middle = (self.top + bottom) / 2
        short = fitted(y_label, bottom - self.top)
        self.parts.append(
            f'<text transform="translate(12 {middle:.1f}) rotate(-90)" class="mid soft">'
            f"{escape(short)}</text>"
        )

    def text(self, x: float, y: float, words: str, kind: str = "", room: float = 1e9) -> None:
        """Words at a place, cut to ``room`` pixels with the whole in a title."""
        short = fitted(words, room)
        title = f"<title>{escape(words)}</title>" if short != words else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{title}{escape(short)}</text>'
        )

    def marks(
        self, marks: Sequence[Mark], x: Axis, y: Axis, kind: str, shape: str, *, many: bool
    ) -> None:
        """Points of one series; ``many`` makes them one path."""
        if not marks:
            return
        if many:
            places = "".join(f"M{x.at(m.x):.1f} {y.at(m.y):.1f}h0" for m in marks)
            trials = ",".join(str(m.trial) for m in marks)
            self.parts.append(f'<path class="many {kind}" data-trials="{trials}" d="{places}"/>')
            return
        for mark in marks:
            self.parts.append(
                f'<g class="mark {kind}" data-trial="{mark.trial}">'
                f"<title>{escape(mark.title)}</title>{drawn(shape, x.at(mark.x), y.at(mark.y))}</g>"
            )

    def line(self, points: Sequence[tuple[float, float]], kind: str, title: str = "") -> None:
        """A polyline in pixels."""
        if points:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            told = f"<title>{escape(title)}</title>" if title else ""
            self.parts.append(f'<path class="line {kind}" d="{path}">{told}</path>')

    def level(self, value: float | None, y: Axis, kind: str, words: str) -> None:
        """A horizontal line with its name at the right end."""
        if value is None or not y.low <= value <= y.high:
            return
        at, right = y.at(value), self.width - self.right
        self.parts.append(f'<path class="level {kind}" d="M{self.left:g} {at:.1f}H{right:g}"/>')
        self.text(right - 2, at - 4 if at > self.top + 14 else at + 12, words, "end halo soft")

    def legend(self, series: Sequence[tuple[str, str, str]]) -> None:
        """Class, shape and words of every series, in rows below the plot.

        Makes the chart higher by them, so it comes before the axes.
        """
        rows: list[list[tuple[str, str, str]]] = [[]]
        room = self.width - self.left
        for each in series:
            if rows[-1] and sum(map(_named_width, [*rows[-1], each])) > room:
                rows.append([])
            rows[-1].append(each)
        for row in rows:
            self.height += _LEGEND
            self.bottom += _LEGEND
            self.named(row, self.left)

    def named(self, series: Sequence[tuple[str, str, str]], x: float) -> None:
        """Class, shape and words of every series, in one row at the bottom from ``x`` on."""
        y = self.height - 5.0
        for kind, shape, words in series:
            if shape == "line":
                self.parts.append(f'<path class="line {kind}" d="M{x - 1:g} {y - 4:g}h10"/>')
            elif shape == "ring":
                self.parts.append(f'<circle class="ring" cx="{x + 4:g}" cy="{y - 4:g}" r="4"/>')
            else:
                self.parts.append(f'<g class="mark {kind}">{drawn(shape, x + 4, y - 4)}</g>')
            self.text(x + 12, y, words, "soft")
            x += _named_width((kind, shape, words))

    def svg(self) -> str:
        """The whole element."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.name, quote=True)}">{"".join(self.parts)}</svg>'
        )


def nothing(name: str, width: int, why: str) -> str:
    """A plot of which there is nothing to draw yet."""
    chart = Chart(name, width, 120)
    chart.text(width / 2, 64, why, "mid soft", width - 20)
    return chart.svg()


def drawn(shape: str, x: float, y: float, r: float = RADIUS) -> str:
    """A marker around a place."""
    if shape == "square":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:g}" height="{2 * r:g}"/>'
    if shape == "triangle":
        half = r + 0.5
        return f'<path d="M{x - half:.1f} {y + r:.1f}h{2 * half:g}l{-half:g} {-2 * half:g}z"/>'
    if shape == "diamond":
        h = r + 1
        return f'<path d="M{x:.1f} {y - h:.1f}l{h:g} {h:g}l{-h:g} {h:g}l{-h:g} {-h:g}z"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'


def fitted(words: str, room: float) -> str:
    """The words, or their beginning and an ellipsis."""
    letters = max(int(room / _LETTER), 2)
    return words if len(words) <= letters else words[: letters - 1] + "…"


def number(value: float) -> str:
    """A tick's text, short."""
    size = abs(value)
    for power, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= power:
            return f"{value / (1e3 if suffix == 'k' else power):.4g}{suffix}"
    return f"{value:.6g}" if size >= 1e-3 or not size else f"{value:.1e}"


def _named_width(named: tuple[str, str, str]) -> float:
    """Pixels of one series in a legend, with the room after it."""
    return 24 + _LETTER * len(named[2])


def _round_step(rough: float, whole: bool) -> float:
    if whole and rough <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    return next(f * power for f in factors if f * power >= rough * (1 - 1e-9))
