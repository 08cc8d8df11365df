"""The table of trials: its columns, a filter with comparisons, an order by several columns, CSV.

A filter is a list of terms that must all hold: ``sqnr_db>35 calibrate_mode=mse top1>=98.5%``.

- ``COLUMN OP VALUE`` with one of ``= != < <= > >= ~`` (``~``: contains). Values separated by commas
  are alternatives. Quotes hold words with spaces.
- Numbers may end in ``k``, ``M`` or ``G``. ``%`` is a hundredth; of a column that is no fraction, a
  hundredth of its greatest value among the complete trials: ``size<=80%``.
- A word alone is looked for in the parameters, the state, the stage, the notes and the error.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter, ge, gt, le, lt
from typing import Any, Final

from compiler.errors import legal_names
from qsearch.errors import SettingsError
from qsearch.masking import masked
from qsearch.report.measures import Measures, value_of
from qsearch.store.view_queries import NO_NOTE, Note, TrialPoint
from workers.metrics.registry import Measure

OWN: Final = (
    "number", "state", "stage", "samples", "seconds", "cpu_s", "attempts",
    "lost_workers", "driver_id", "started_at", "finished_at", "from_store", "error",
)  # fmt: skip
BESIDE: Final = ("front", "note", "tags")
_TERM: Final = re.compile(
    r'\s*(?:("[^"]*"|[^\s"=<>!~≤≥]+)\s*(<=|>=|!=|=|<|>|~|≤|≥)\s*("[^"]*"|[^\s"]+)|("[^"]*"|[^\s"]+))'
)
_NUMBER: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(k|M|G|%)?", re.IGNORECASE)
_FACTOR: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "%": 0.01}
_COMPARE: Final[dict[str, Callable[[Any, float], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_WORDS: Final = {"none": None, "true": True, "false": False}

Value = Callable[[TrialPoint], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, what a trial has in it (None where nothing), and its measure."""

    name: str
    value: Value
    measure: Measure | None = None


@dataclass(frozen=True)
class TrialTable:
    """The trials of a study in a table.

    Attributes:
        points: its trials, by number.
        measures: which figures they have.
        front: numbers of those on the front of a search with several objectives.
        notes: the newest note of each trial that has one.
    """

    points: Sequence[TrialPoint]
    measures: Measures
    front: Sequence[int]
    notes: Mapping[int | None, Note]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Every column by its name: own ones, measures, ``params.NAME``."""
        found = {name: Column(name, attrgetter(name)) for name in OWN}
        found["error"] = Column("error", _error)
        front = set(self.front)
        notes = self.notes
        found["front"] = Column("front", lambda p: p.number in front)
        found["note"] = Column("note", lambda p: notes.get(p.number, NO_NOTE).note or None)
        found["tags"] = Column(
            "tags", lambda p: " ".join(notes.get(p.number, NO_NOTE).tags) or None
        )
        for each in self.measures.all:
            found[each.name] = Column(each.name, partial(value_of, each), each)
        for name in dict.fromkeys(name for point in self.points for name in point.params):
            found[f"params.{name}"] = Column(f"params.{name}", partial(_param, name))
        return found

    def chosen(self, filter: str = "", sort: str = "number") -> list[TrialPoint]:
        """The trials that pass a filter, in order.

        Args:
            filter: see above.
            sort: columns separated by commas; ``-`` before one puts its greatest value first. Equal
                trials stay in the order of their numbers, those without a value come last.
        Raises:
            SettingsError: a column that is not there, or a value that cannot be compared.
        """
        tests = [self._test(term) for term in _terms(filter)]
        kept = [point for point in self.points if all(test(point) for test in tests)]
        for word in reversed([word for word in sort.split(",") if word]):
            column = self._column(word.removeprefix("-"), "sort")
            have = [(column.value(point), point) for point in kept]
            known = [(_order(value), point) for value, point in have if value is not None]
            known.sort(key=lambda pair: pair[0], reverse=word.startswith("-"))
            kept = [point for _, point in known] + [point for value, point in have if value is None]
        return kept

    def csv(self, points: Iterable[TrialPoint]) -> str:
        """Comma-separated values with a header; as they are stored, without units."""
        columns = [c for c in self.columns.values() if c.name != "front" or self.front]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_cell(column.name) for column in columns])
        for point in points:
            writer.writerow([_cell(column.value(point)) for column in columns])
        return out.getvalue()

    def _column(self, name: str, where: str) -> Column:
        """Find a column by its name, or that of a parameter or the option of a measure, in any
        case."""
        wanted = name.lower()
        for column in self.columns.values():
            option = "" if column.measure is None else column.measure.option
            if wanted in (column.name.lower(), column.name.removeprefix("params.").lower(), option):
                return column
        names = [name.removeprefix("params.") for name in self.columns]
        raise SettingsError(
            f"there is no column {name[:80]!r}", where=where, fix=legal_names(name, names)
        )

    def _test(self, term: tuple[str, str, str]) -> Callable[[TrialPoint], bool]:
        name, operator, text = term
        if text.startswith('"'):
            values = [text.strip('"')]
        else:
            values = text.split(",")
        if not name:
            return lambda point: values[0].lower() in self._whole(point)
        column = self._column(name, "filter")
        if operator == "~":
            return lambda point: any(v.lower() in str(column.value(point)).lower() for v in values)
        if operator in ("=", "!="):
            tests = [self._equals(column, value) for value in values]
            return lambda point: (
                any(test(column.value(point)) for test in tests) == (operator == "=")
            )
        limit = self._number(column, values[0])
        if limit is None or len(values) > 1:
            raise SettingsError(
                f"{column.name} {operator} {text[:40]}: not a number",
                where="filter",
                fix="compare with a number: 35, 1.5M, 98.5%",
            )
        number, _ = limit
        holds = _COMPARE[operator]
        return lambda point: (
            not isinstance(value := column.value(point), str | None) and holds(value, number)
        )

    def _equals(self, column: Column, text: str) -> Callable[[Any], bool]:
        number = self._number(column, text)

        def test(value: Any) -> bool:
            if number is not None and type(value) in (int, float):  # True is no number
                return bool(abs(value - number[0]) <= number[1])
            if text.lower() in _WORDS and not isinstance(value, str):
                return value is _WORDS[text.lower()]
            if column.name == "tags":
                return text in (value or "").split()
            return str(value).lower() == text.lower()

        return test

    def _number(self, column: Column, text: str) -> tuple[float, float] | None:
        """A number in the units of a column, and half of its last decimal: it is equal within."""
        match = _NUMBER.fullmatch(text)
        if match is None:
            return None
        factor = _FACTOR[(match[2] or "").lower()]
        if match[2] == "%" and not (column.measure and column.measure.unit == "%"):
            # Of the greatest: a search whose layers differ is compared with its largest module.
            done = (column.value(p) for p in self.points if p.state == "complete")
            factor *= max((v for v in done if isinstance(v, int | float)), default=0.0)
        _, _, decimals = match[1].lower().partition("e")[0].partition(".")
        near = 0.5 * 10.0 ** -len(decimals) if decimals else 1e-9
        return float(match[1]) * factor, near * factor

    def _whole(self, point: TrialPoint) -> str:
        text = " ".join(f"{name}={value}" for name, value in point.params.items())
        kept = self.notes.get(point.number, NO_NOTE)
        words = (point.number, point.state, point.stage, text, point.error, kept.note, *kept.tags)
        return " ".join(str(word or "") for word in words).lower()


def _error(point: TrialPoint) -> str | None:
    if point.error is None:
        return None
    return masked(point.error)


def _param(name: str, point: TrialPoint) -> Any:
    return point.params.get(name)


def _terms(filter: str) -> list[tuple[str, str, str]]:
    """Column, operator and value of every term; a word alone has no column."""
    found = []
    at = 0
    text = filter.rstrip()
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None or (match[4] and re.search(r"[=<>!~≤≥]", match[4].strip('"'))):
            raise SettingsError(
                f"the filter is not understood at {text[at:].strip()[:60]!r}",
                where="filter",
                fix="write COLUMN OP VALUE, such as sqnr_db>35 calibrate_mode=mse top1>=98.5%",
            )
        name, operator, value, word = match.groups()
        operator = {"≤": "<=", "≥": ">="}.get(operator, operator)
        found.append(("", "~", word) if word else (name.strip('"'), operator, value))
        at = match.end()
    return found


def _order(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value: numbers before words."""
    if isinstance(value, int | float):
        return (0, value)
    return (1, str(value))


def _cell(value: Any) -> Any:
    # A spreadsheet runs text that begins like a formula.
    risky = isinstance(value, str) and value[:1] in tuple("=+-@\t\r")
    if risky:
        return f"'{value}"
    return value
