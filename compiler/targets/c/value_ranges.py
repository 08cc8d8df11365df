"""What values an integer expression can take, so that plain C arithmetic is used where it is safe.

Intervals by dtype and by operation: a product of two int8 loads widened to int32 lies in
[-16256, 16384], so a sum of a thousand of them needs no protection against overflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.lir.scalars import (
    Acc,
    Axis,
    Bin,
    BoolImm,
    Cast,
    IntImm,
    Intrin,
    Scalar,
    Select,
    Un,
)
from compiler.lir.walk import post_order

Range = tuple[int, int]
"""Smallest and largest value."""


def dtype_range(dtype: str) -> Range:
    """Bounds of an integer dtype; bool is 0 to 1.

    Raises:
        ValueError: a float dtype.
    """
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def is_integer(dtype: str) -> bool:
    """Integers and bool."""
    return not dtype.startswith("float")


def fits(values: Range, dtype: str) -> bool:
    """Whether every value of a range exists in an integer dtype."""
    low, high = dtype_range(dtype)
    return low <= values[0] and values[1] <= high


class ValueRanges:
    """Ranges of expressions, each found once.

    Args:
        acc: range of the accumulator in an epilogue; None: that of its dtype.
    """

    def __init__(self, acc: Range | None = None) -> None:
        self._acc = acc
        self._found: dict[int, Range] = {}
        # Keeps the scalars alive whose ids are keys.
        self._kept: list[Scalar] = []

    def of(self, root: Scalar) -> Range:
        """Range of an integer expression."""
        if id(root) not in self._found:
            for node in post_order(root):
                if id(node) not in self._found and is_integer(node.dtype):
                    self._kept.append(node)
                    self._found[id(node)] = self._range(node)
        return self._found[id(root)]

    def _range(self, node: Scalar) -> Range:
        if isinstance(node, IntImm):
            return node.value, node.value
        if isinstance(node, BoolImm):
            return int(node.value), int(node.value)
        if isinstance(node, Axis):
            return 0, max(node.extent - 1, 0)
        if isinstance(node, Acc) and self._acc is not None:
            return self._acc
        if isinstance(node, Bin) and is_integer(node.a.dtype):
            return held(exact_range(node, self._found), node.dtype)
        if isinstance(node, Un) and node.op in ("neg", "abs"):
            return held(exact_range(node, self._found), node.dtype)
        if isinstance(node, Select):
            a, b = self._found[id(node.a)], self._found[id(node.b)]
            return min(a[0], b[0]), max(a[1], b[1])
        if isinstance(node, Cast) and is_integer(node.a.dtype) and node.to != "bool":
            return held(self._found[id(node.a)], node.to)
        if isinstance(node, Intrin):
            return self._intrinsic(node)
        return dtype_range(node.dtype)

    def _intrinsic(self, node: Intrin) -> Range:
        low, high = dtype_range(node.dtype)
        if node.name == "saturating_cast" and is_integer(node.args[0].dtype):
            inner = self._found[id(node.args[0])]
            return min(max(inner[0], low), high), max(min(inner[1], high), low)
        if node.name == "isqrt":
            return 0, 2**31 - 1
        return low, high


def held(values: Range, dtype: str) -> Range:
    """``values``, or everything ``dtype`` can hold where some of them wrap."""
    return values if fits(values, dtype) else dtype_range(dtype)


def exact_range(node: Bin | Un, ranges: Mapping[int, Range]) -> Range:
    """Range of the mathematical result, before it wraps.

    Args:
        node: an operation on integers.
        ranges: of its operands, by id.
    """
    if isinstance(node, Un):
        low, high = ranges[id(node.a)]
        if node.op == "neg":
            return -high, -low
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    a, b = ranges[id(node.a)], ranges[id(node.b)]
    if node.op == "+":
        return a[0] + b[0], a[1] + b[1]
    if node.op == "-":
        return a[0] - b[1], a[1] - b[0]
    if node.op == "*":
        return _hull([x * y for x in a for y in b])
    if node.op in ("min", "max"):
        choose = min if node.op == "min" else max
        return choose(a[0], b[0]), choose(a[1], b[1])
    width = 8 * np.dtype(node.a.dtype).itemsize
    if b[0] == b[1] and 0 <= b[0] < width:
        if node.op == "<<":
            return a[0] << b[0], a[1] << b[0]
        if node.op == ">>":
            return a[0] >> b[0], a[1] >> b[0]
    if node.op in ("floordiv", "truncdiv", "floormod") and a[0] >= 0 and b[0] > 0:
        return (0, min(a[1], b[1] - 1)) if node.op == "floormod" else (a[0] // b[1], a[1] // b[0])
    return dtype_range(node.dtype)


def _hull(values: Sequence[int]) -> Range:
    return min(values), max(values)
