"""Count the work of a generated function in its text, for costs on a device.

The text is the program that runs, and its grammar is small: one statement a line, loops whose
limits are numbers. Each kind of work is counted as often as its line runs, and as often as it is
written. What a kind takes in instructions and bytes stands in ``cores.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = {
    "call": "a call of a kernel, or of what unpacks constants",
    "loop": "a loop entered",
    "turn": "a turn of it",
    "branch": "a condition",
    "load": "a value read",
    "store": "a value written",
    "simple": "an operation of at most 32 bits",
    "function": "the least, the largest or a shift of at most 32 bits",
    "wide": "an operation of 64 bits",
    "wide_product": "a product of 64 bits",
    "wide_function": "the least, the largest or a shift of 64 bits",
    "rescale": "a fixed-point multiplication",
    "division": "a quotient of at most 32 bits",
    "wide_division": "a quotient of 64 bits",
    "root": "a square root",
    "float": "an operation of floats",
    "float_function": "a rounding, the least or the largest of floats",
    "dots": "a step of eight dot products",
    "far_dots": "one whose columns lie too far apart for one register",
    "row_dots": "a step of four dot products with one row",
    "widened": "a value copied as int16",
    "product": "a product that is added to one sum",
    "tap": "a product of a sum that is written out",
    "far_tap": "one that lies too far from the first for one register",
    "unpacked": "a constant unpacked, of at most 32 bits",
    "unpacked_byte": "a byte that such constants are read from",
    "wide_unpacked": "a constant of 64 bits unpacked",
    "wide_unpacked_byte": "a byte of those",
}
"""Kinds of work, and what they count."""

Counts = dict[str, float]
"""Counts by kind."""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BROKEN = re.compile(r"([(,])\n +")
_LOOP = re.compile(
    r"(?:\w+ )?for \(int32_t (\w+) = ([^;]+); \w+ < ([^;]+); (?:\+\+\w+|\w+ \+= (\d+))\)"
)
_VALUE = re.compile(r"(\w+) = ([^,;]+)[,;]")
_END = re.compile(r"(\w+) = min_i32\((\d+), (\w+) \+ \d+\);")
_TIMES = re.compile(r"\((.*)\) \* (\d+)")
_PRODUCT = re.compile(r"\(int32_t\)\w+\[([^]]*)\] \* \(int32_t\)\w+\[[^]]*\]")
_FAR = re.compile(r"\+ (\d{4,})$")
_REACH: Final = 4095
"""Bytes from a register that a load reaches."""
_CALL = re.compile(r"\b([a-z]\w*)\(")
_INDEX = re.compile(r"\[[^][]*\]")
_TYPE = re.compile(r"\((?:u?int\d+_t|float|double)\)|\b(?:const )?(?:u?int\d+_t|float|double) ")
_TERM = re.compile(r"([+-]?) ?(\w+)")
_STORE = re.compile(r"(?:[A-Za-z_]\w*(?:\[.*?\])|\*\w+) [-+*|&^]?= ")
_FUNCTIONS: Final = (
    (re.compile(r"wrap_|bits_"), ""),
    (re.compile(r"fixed_point|half_up|rescale"), "rescale"),
    (re.compile(r"isqrt"), "root"),
    (re.compile(r"(floor|trunc)?(div|mod)_[iu]64"), "wide_division"),
    (re.compile(r"(floor|trunc)?(div|mod)_[iu]"), "division"),
    (re.compile(r"\w+_f(32|64)$"), "float_function"),
    (re.compile(r"\w+_[iu]64$"), "wide_function"),
    (re.compile(r"\w+_[iu](8|16|32)$"), "function"),
)
"""Kinds of the arithmetic that kernels call, by name; the first that fits."""
_OPERATIONS: Final = {
    ("simple", "wide"): re.compile(r" (?:[-+&|^<>]|<<|>>|[<>=!]=|[-+&|^]=) "),
    ("simple", "wide_product"): re.compile(r" \*=? "),
    ("division", "wide_division"): re.compile(r" [/%] "),
}
"""Operators of at most 32 bits, and the same ones of 64."""
_LONG = re.compile(r"\b(unpack_[iu]64|unpack|widen|dots|row_dots)\w*\(.*?, (\d+)[,)](?: (\d+),)?")
_LONG_KINDS: Final = {
    "unpack_i64": "wide_unpacked", "unpack_u64": "wide_unpacked", "unpack": "unpacked",
    "widen": "widened", "dots": "dots", "row_dots": "row_dots",
}  # fmt: skip
"""Calls that do their work as often as the first number among their arguments says."""


@dataclass(slots=True)
class Work:
    """Work of a function.

    Attributes:
        times: how often one call does each kind, with what it calls; at borders, what it does
            inside.
        places: how often each kind is written in it.
    """

    times: Counts = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    places: Counts = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))

    def add(self, kind: str, times: float, count: float = 1) -> None:
        """Count what a line does ``count`` times."""
        self.times[kind] += times * count
        self.places[kind] += count


def work_of(text: str, called: Mapping[str, Counts] | None = None) -> Work:
    """The work of a function.

    Args:
        text: its definition, as ``kernel.py`` and ``package.py`` write it.
        called: ``times`` of the kernels and functions that it calls, by their names in C.
    """
    reader = _Reader(called or {})
    body = text[text.index("\n{\n") + len("\n{\n") :]
    for line in _BROKEN.sub(r"\1 ", _COMMENT.sub("", body)).splitlines():
        reader.read(line.strip())
    return reader.work


class _Reader:
    """Reads line by line; knows how often the line runs."""

    def __init__(self, called: Mapping[str, Counts]) -> None:
        self.work = Work()
        self._called = called
        self._times = [1.0]
        self._known: dict[str, float] = {}
        self._turns: dict[str, float] = {}

    def read(self, line: str) -> None:
        times = self._times[-1]
        if line == "}":
            self._times.pop()
        elif line == "else {":
            self._times.append(0.0)  # outside of an image
        elif loop := _LOOP.match(line):
            self._loop(loop, times)
            if line.endswith("{"):
                self._times.append(times * self._turns[loop[1]])
        elif line:
            self._names(line)
            self._statement(line, times)
            if line.endswith("{"):
                self._times.append(times)

    def _loop(self, loop: re.Match[str], times: float) -> None:
        name, first, behind, step = loop.groups()
        count = (self._value(behind) - self._value(first)) / float(step or 1)
        self._turns[name] = max(0.0, math.ceil(count) if step else count)
        self._known[name] = self._value(first)
        self.work.add("loop", times)
        self.work.add("turn", times * self._turns[name])

    def _names(self, line: str) -> None:
        """Numbers that limits of loops name; of a tile's end, what a tile has in the mean."""
        if end := _END.search(line):
            self._known[end[1]] = float(end[2]) / max(1.0, self._turns.get(end[3], 1.0))
        elif line.startswith("const int32_t "):
            self._known |= {name: self._value(value) for name, value in _VALUE.findall(line)}

    def _value(self, text: str) -> float:
        """A sum of numbers and names, or a multiple of one; 0 for what is unknown."""
        if product := _TIMES.fullmatch(text):
            return self._value(product[1]) * float(product[2])
        total = 0.0
        for sign, term in _TERM.findall(text):
            if term.isdigit():
                value = float(term)
            else:
                value = self._known.get(term, 0.0)
            total += -value if sign == "-" else value
        return total

    def _statement(self, line: str, times: float) -> None:
        add = self.work.add
        for place in _PRODUCT.findall(line):
            far = _FAR.search(place)
            tap = "far_tap" if far and int(far[1]) > _REACH else "tap"
            add("product" if " += " in line else tap, times)
        line = _PRODUCT.sub("0", line)
        if often := _LONG.search(line):
            done = _LONG_KINDS[often[1]]
            if done == "dots" and 3 * 2 * int(often[2]) > _REACH:
                done = "far_dots"
            if done.endswith("unpacked"):
                add("call", times)
                self.work.times[f"{done}_byte"] += times * float(often[2]) * int(often[3]) / 8
            self.work.times[done] += times * float(often[2])
            self.work.places[done] += 1
            return
        for name in _CALL.findall(line):
            if name in self._called:
                add("call", times)
                for kind, count in self._called[name].items():
                    self.work.times[kind] += times * count
            elif kind := next((kind for form, kind in _FUNCTIONS if form.match(name)), ""):
                add(kind, times)
        if line.startswith("if ") or " ? " in line:
            add("branch", times, 1 + sum(map(line.count, ("&&", "||", " ? "))))
        if stored := _STORE.match(line):
            add("store", times)
            line = line[stored.end() :]
        add("load", times, line.count("["))
        wide = "int64" in line or "INT64" in line
        real = "float" in line or re.search(r"\d\.\d", line) is not None
        while _INDEX.search(line):
            line = _INDEX.sub("", line)
        line = _TYPE.sub("", line)
        for (plain, long), form in _OPERATIONS.items():
            add("float" if real else long if wide else plain, times, len(form.findall(line)))
