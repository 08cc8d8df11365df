"""Metrics and costs by name: what a figure of a score is, and how sums of shards become scores.

A metric or a cost is one file beside this one. The file registers a ``Measure`` (key, option, unit,
direction, interval, format) and holds what computes the figure; a metric also registers its sums in
``metrics``. Objectives, scores, schemas, reports and the dashboard read these tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.named_table import NamedTable
from workers.errors import MetricError
from workers.metrics.library import WORDS
from workers.metrics.protocol import Metric, Outputs, State

Needs = Literal["", "labels", "hardware", "core", "compiler"]
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
        needs: what must be there: labels, ``--hw``, a core that ``--for`` names, or a C compiler.
        interval: 95 % interval: Wilson's for fractions of decisions, or from a standard error that
            the score holds as ``<name>_error``.
        infinite: finite number that stands for an infinite value; None where values are finite.
        perfect: score of the float model beside itself; None where it is not known or infinite.
        place: among the measures, where they are listed.
        meaning: what the figure says and which way is better, for people who meet it first.
        template: how a value of a score is printed in a sentence, for ``str.format``.
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
    meaning: str = ""
    template: str = ""

    @property
    def words(self) -> str:
        """Name for people."""
        return self.title or self.name

    def finite(self, value: float | None) -> float | None:
        """A stored value as a finite number; a score holds None for infinity."""
        if value is None or math.isinf(value):
            return self.infinite
        return float(value)

    def shown(self, value: float | None) -> float | None:
        """A stored value in the unit that is shown."""
        if value is None or self.unit != "%":
            return value
        return 100.0 * value

    def formatted(self, value: float) -> str:
        """A stored value as text, with its unit where ``template`` has one."""
        if self.template:
            return self.template.format(value)
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.4g}"


measures: Final[NamedTable[Measure]] = NamedTable(
    "measure", MetricError, filled_by="workers.metrics.builtin"
)
"""Measures by the key in a score."""


def declare(name: str, option: str = "", **about: Any) -> None:
    """Register the measure of a key, with these attributes."""
    measures.register(name)(Measure(name, option, **about))


def declare_cost(name: str, option: str, **about: Any) -> None:
    """Register the measure of a cost, with these attributes."""
    declare(name, option, smaller_is_better=True, **about)


def measure(name: str) -> Measure:
    """The measure of a key; one that is not registered (a metric of the user) is shown as it is."""
    if name in measures:
        return measures.require(name)
    return _others(name)


def by_option(option: str) -> Measure:
    """The measure behind a word of ``--metric`` or ``--minimize``; a user's metric is its own."""
    found = (m for m in known_measures() if m.option == option)
    return next(found, None) or _others(option)


def _others(name: str) -> Measure:
    """A metric of the user by its import path, or of a library by its word."""
    return Measure(WORDS.get(name, name), name)


def known_measures() -> tuple[Measure, ...]:
    """Every registered measure in the order in which they are listed: accuracies, then costs."""
    return _in_order(tuple(measures.names()))


# Drivers ask several times for every trial.
@lru_cache(maxsize=1)
def _in_order(names: tuple[str, ...]) -> tuple[Measure, ...]:
    return tuple(sorted(map(measures.require, names), key=lambda m: m.place))


def metric_options() -> tuple[str, ...]:
    """Words that ``--metric`` takes; the costs come last."""
    return tuple(m.option for m in known_measures() if m.option)


def legend(names: Iterable[str]) -> list[str]:
    """``name: meaning`` for keys or titles of measures, in their order; others say nothing."""
    asked = set(names) - {""}
    found = {m.name: m for m in known_measures() if m.meaning}
    told = ((name, m) for m in found.values() for name in (m.name, m.title) if name in asked)
    return [f"{name}: {m.meaning}" for name, m in told]


_SYNONYMS: Final = {"accuracy": "top1", "acc": "top1", "snr": "sqnr", "bytes": "size"}


def option_named(word: str) -> str:
    """The option that a word means: an option, a key or a title in any spelling; else the word."""
    plain = _plain(word)
    for each in known_measures():
        if each.option and plain in map(_plain, (each.option, each.name, each.title)):
            return each.option
    return _SYNONYMS.get(plain, word)


def spellings() -> list[str]:
    """Names of measures beside their options, as they are printed or usual elsewhere."""
    return [*(m.name for m in known_measures()), *_SYNONYMS]


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def costs() -> tuple[Measure, ...]:
    """Return the measures that ``--minimize`` takes."""
    return tuple(m for m in known_measures() if m.option and m.smaller_is_better)


def cost_options() -> tuple[str, ...]:
    """The words of ``costs``."""
    return tuple(m.option for m in costs())


metrics: Final[NamedTable[Metric]] = NamedTable(
    "metric", MetricError, filled_by="workers.metrics.builtin"
)
"""Sums that become scores, by the option that names them."""


def find_metric(name: str) -> Metric:
    """The metric of a name, or the user's behind ``module:function``.

    Raises:
        MetricError: there is none.
    """
    if ":" in name:
        from workers.metrics.custom import custom_metric

        return custom_metric(name)
    return metrics.require(name)


def of_answers(name: str) -> bool:
    """Return whether a metric judges the answers of the whole model, and not how far a core is
    off."""
    return ":" in name or find_metric(name).needs_labels


def merge_sums(shards: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, State]:
    """Sums of all shards, added in the given order; metric name → state."""
    merged: dict[str, State] = {}
    for shard in shards:
        for name, state in shard.items():
            held = merged.setdefault(name, {})
            for key, value in state.items():
                held[key] = held.get(key, 0.0) + value
    return merged


def results(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Score of every metric: fractions 0..1 or decibels; None where there is none.

    Raises:
        MetricError: a name that is not registered.
    """
    return {name: find_metric(name).result(state) for name, state in sums.items()}


class MetricSums:
    """Sums of several metrics.

    Args:
        names: registered metrics; those that need labels or a reference which is not there are
            refused, so that no score is silently empty.
        has_labels, has_reference: what the data offers.
    Raises:
        MetricError: an unknown name, or a metric that lacks what it needs.
    """

    def __init__(self, names: Sequence[str], *, has_labels: bool, has_reference: bool) -> None:
        self._metrics = {name: find_metric(name) for name in names}
        self.sums: dict[str, State] = {name: m.init() for name, m in self._metrics.items()}
        for name, metric in self._metrics.items():
            if metric.needs_labels and not has_labels:
                raise MetricError(
                    f"metric {name!r} needs labels and the data has none",
                    fix="add labels to the data, or use the metric agreement or sqnr",
                )
            if metric.needs_reference and not has_reference:
                raise MetricError(
                    f"metric {name!r} compares with the float model, whose outputs were not given",
                    fix="give a metric that judges by labels, or the outputs of the float model",
                )

    def add(self, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None) -> None:
        """Add samples; see ``Metric.update``."""
        for name, metric in self._metrics.items():
            try:
                metric.update(self.sums[name], outputs, reference, labels)
            except CompilerError:
                raise
            except (ValueError, IndexError) as error:  # of a library: data that it does not take
                raise MetricError(
                    f"the metric {measure(name).words} cannot be computed: {error}",
                    where=f"outputs {[list(out.shape) for out in outputs]}",
                    fix="another --metric, or labels as this one takes them",
                ) from error

    def results(self) -> dict[str, float | None]:
        """Scores so far."""
        return {name: metric.result(self.sums[name]) for name, metric in self._metrics.items()}
