"""The step table: names of step.h, rows of int64, and the blob of constants."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from compiler.ops.number_format import Array
from compiler.targets.engine.isa import HERE
from compiler.targets.engine.views import ALIGN

SLACK: Final = 256
"""Bytes behind arena and blob that kernels may read: QK_SLACK."""


@functools.cache
def layout() -> tuple[dict[str, tuple[str, ...]], dict[str, int], int]:
    """Fields of every step by name of its struct, numbers of the enumerators, fields of a row.

    Read from step.h, so that names and places are written once.
    """
    text = re.sub(r"/\*.*?\*/", "", (HERE / "step.h").read_text(encoding="utf-8"), flags=re.S)
    fields: dict[str, tuple[str, ...]] = {}
    defines = {k: int(v) for k, v in re.findall(r"#define (QK_\w+) (\d+)", text)}
    for body, name in re.findall(r"typedef struct \{(.*?)\} qk_(\w+);", text, flags=re.S):
        found: list[str] = []
        for kind, names in re.findall(r"(int64_t|qk_requantize) ([^;]+);", body):
            for field in names.replace("\n", " ").split(","):
                word, _, size = field.strip().rstrip("]").partition("[")
                if kind == "qk_requantize":
                    found += [f"{word}_{inner}" for inner in fields["requantize"]]
                elif size:
                    found += [f"{word}_{i}" for i in range(defines[size])]
                else:
                    found.append(word)
        fields[name.removesuffix("_step")] = tuple(found)
    numbers: dict[str, int] = {}
    for body in re.findall(r"enum \{(.*?)\}", text, flags=re.S):
        for number, word in enumerate(body.replace("\n", " ").split(",")):
            numbers[word.strip().removeprefix("QK_")] = number
    return fields, numbers, defines["QK_FIELDS"]


def number(name: str) -> int:
    """The value of an enumerator of step.h, without QK_."""
    return layout()[1][name]


def row_fields() -> int:
    """Numbers of a row."""
    return layout()[2]


def row(kind: str, **values: int) -> list[int]:
    """A step.

    Args:
        kind: name of the struct: "gemm".
        values: its fields; others are 0.
    """
    made = operation(kind.upper(), kind, **values)
    return [*map(int, made), *[0] * (row_fields() - len(made))]


def operation(name: str, record: str = "op", **values: Any) -> list[Any]:
    """A micro operation of an elementwise program; "wide_op" of one over int64."""
    fields, numbers, _ = layout()
    made: list[Any] = [0] * len(fields[record])
    made[0] = numbers[name]
    for field, value in values.items():
        made[fields[record].index(field)] = value
    return made


def by_axis(**pairs: Sequence[int]) -> dict[str, int]:
    """Fields of rows and columns: ``kernel_y`` and ``kernel_x`` of ``kernel``."""
    return {f"{name}_{a}": n for name, pair in pairs.items() for a, n in zip("yx", pair)}


class Blob:
    """Constants, put one behind the other; equal ones are put once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._size = 0

    def put(self, array: Array) -> int:
        """Offset of the array's bytes, a multiple of ALIGN; kernels may read SLACK beyond them."""
        data = np.ascontiguousarray(array).tobytes()
        place = self._places.get(data)
        if place is None:
            place = self._places[data] = self._size
            padded = -len(data) % ALIGN
            self._parts.append(data + bytes(padded))
            self._size += len(data) + padded
        return place

    def array(self) -> tuple[Array, int]:
        """All constants, aligned, with SLACK behind them, and the bytes before the slack."""
        made = aligned(self._size)
        made[: self._size] = np.frombuffer(b"".join(self._parts), np.uint8)
        return made, self._size


def aligned(size: int) -> Array:
    """Zero bytes at an address that is a multiple of ALIGN, with SLACK behind them."""
    raw = np.zeros(size + SLACK + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size + SLACK]
