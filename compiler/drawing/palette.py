"""Colours by kind of box, also for readers with red-green colour blindness.

Hues follow Okabe and Ito, "Color Universal Design", 2008; quantized boxes also differ by outline.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.drawing.picture import Kind


@dataclass(frozen=True, slots=True)
class Colours:
    """Fill and outline of a box, as CSS hexadecimal colours."""

    fill: str
    line: str


LIGHT: dict[Kind, Colours] = {
    Kind.INPUT: Colours("#ffffff", "#555555"),
    Kind.FLOAT: Colours("#dcecf8", "#0072b2"),
    Kind.SIMULATED: Colours("#fbe3f0", "#cc79a7"),
    Kind.QUANTIZED: Colours("#ffe3ad", "#b36b00"),
    Kind.ACCUMULATOR: Colours("#fff6d8", "#b36b00"),
    Kind.OTHER: Colours("#eeeeee", "#777777"),
}

DARK: dict[Kind, Colours] = {
    Kind.INPUT: Colours("#202428", "#a0a8b0"),
    Kind.FLOAT: Colours("#12324a", "#56b4e9"),
    Kind.SIMULATED: Colours("#45263a", "#e59cc6"),
    Kind.QUANTIZED: Colours("#573c00", "#ffb733"),
    Kind.ACCUMULATOR: Colours("#332a10", "#ffb733"),
    Kind.OTHER: Colours("#2c2f33", "#9aa0a6"),
}
