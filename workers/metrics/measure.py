"""Measure: one figure of a score, and the table of those that are known by name.

A metric or a cost is one file beside this one: it registers its ``Measure`` here and holds what
computes it. Objectives, scores, schemas, reports and the dashboard read the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from compiler.named_table import NamedTable
from workers.errors import MetricError

Needs = Literal["", "labels", "hardware", "compiler"]
Interval = Literal["", "wilson", "error"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a score.

    Attributes:
        name: key in a score.
        option: word of ``--metric`` and ``--minimize``; empty for what is only shown.
        title: name for people; empty is ``name``.
        unit: of the shown value. ``%`` shows a fraction (0..1) in percent.
        smaller_is_better: a cost.
        needs: what must be there: labels, ``--hw``, or a C compiler.
        interval: 95 % interval: Wilson's for fractions of decisions, or from a standard error that
            the score holds as ``<name>_error``.
        infinite: finite number that stands for an infinite value; None where values are finite.
        perfect: score of the float model beside itself; None where it is not known or infinite.
        place: among the measures, where they are listed.
        template: how a value of a score is printed in a sentence, for ``str.format``.
        loss: what the sums of a part of the samples lose, less is better; None where parts cannot
            be compared.
    """

    name: str
    option: str = ""
    title: str = ""
    unit: str = ""
    smaller_is_better: bool = False
    needs: Needs = ""
    interval: Interval = ""
    infinite: float | None = None
    perfect: float | None = None
    place: int = 100
    template: str = ""
    loss: Callable[[Mapping[str, float]], float] | None = None

    @property
    def words(self) -> str:
        """Name for people."""
        return self.title or self.name

    @property
    def label(self) -> str:
        """Name and unit, for an axis."""
        return f"{self.words} ({self.unit})" if self.unit else self.words

    @property
    def most(self) -> float:
        """The greatest value that can be shown."""
        return 100.0 if self.unit == "%" else math.inf

    def finite(self, value: float | None) -> float | None:
        """A stored value as a finite number; a score holds None for infinity."""
        if value is None or math.isinf(value):
            return self.infinite
        return float(value)

    def is_infinite(self, value: float) -> bool:
        """Whether a finite number stands for an infinite value, or its negative."""
        return self.infinite is not None and abs(value) >= self.infinite

    def shown(self, value: float | None) -> float | None:
        """A stored value in the unit that is shown."""
        return value if value is None or self.unit != "%" else 100.0 * value

    def told(self, value: float) -> str:
        """A stored value in a sentence."""
        if self.template:
            return self.template.format(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


measures: Final[NamedTable[Measure]] = NamedTable("measure", MetricError)
"""By the key in a score."""


def measure(name: str) -> Measure:
    """The measure of a key; one that is not registered (a metric of the user) is shown as it is."""
    _register_all()
    return measures.require(name) if name in measures else Measure(name)


def by_option(option: str) -> Measure:
    """The measure behind a word of ``--metric`` or ``--minimize``; a user's metric is its own."""
    return next((m for m in known_measures() if m.option == option), Measure(option, option))


def known_measures() -> tuple[Measure, ...]:
    """Every registered measure in the order in which they are listed: accuracies, then costs."""
    _register_all()
    found = (measures.require(name) for name in measures.names())
    return tuple(sorted(found, key=lambda m: m.place))


def metric_options() -> tuple[str, ...]:
    """Words that ``--metric`` takes; the costs come last."""
    return tuple(m.option for m in known_measures() if m.option)


def cost_options() -> tuple[str, ...]:
    """Words that ``--minimize`` takes."""
    return tuple(m.option for m in known_measures() if m.option and m.smaller_is_better)


def _register_all() -> None:
    """Import the files beside this one that register a measure."""
    from workers.metrics import agreement, hardware, latency, size, sqnr, top_k  # noqa: F401
