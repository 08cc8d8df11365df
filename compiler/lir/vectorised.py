"""Scalar expressions evaluated on whole tiles of loops with numpy.

A loop variable is an arange along its own axis. Every value has the rank of the loops, and size 1
along the loops that it does not depend on: it is computed once for all iterations of such a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from compiler.ir.lowered_function import Array
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import (
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
)
from compiler.lir.walk import post_order

Span = tuple[int, int]


def _shift(function: Any) -> Callable[[Array, Array], Any]:
    def shifted(a: Array, b: Array) -> Any:
        return function(a, b & b.dtype.type(a.dtype.itemsize * 8 - 1))

    return shifted


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
    "floordiv": np.floor_divide, "floormod": np.mod, "min": np.minimum, "max": np.maximum,
    "<<": _shift(np.left_shift), ">>": _shift(np.right_shift),
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
    ">": np.greater, ">=": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip

_UNARY: dict[str, Callable[[Array], Any]] = {"neg": np.negative, "abs": np.abs, "not": np.invert}


class Tile:
    """Part of a loop nest: a span of every loop, and the buffers read there.

    Args:
        loops: all loop variables, outermost first.
        spans: (start, stop) of each.
        buffers: contents by buffer.
        acc: value of ``Acc``, in an epilogue.
        check: keep track of where integer arithmetic wraps.
    """

    def __init__(
        self,
        loops: Sequence[Axis],
        spans: Sequence[Span],
        buffers: Mapping[Buffer, Array],
        acc: Array | None = None,
        check: bool = False,
    ) -> None:
        self._places = {axis.name: k for k, axis in enumerate(loops)}
        self._spans = tuple(spans)
        self._buffers = buffers
        self._acc = acc
        self._check = check
        self._wrapped: dict[int, Array | None] = {}

    def wrapped(self, root: Scalar) -> bool:
        """True when an evaluated expression holds an element that wrapped and was chosen."""
        held = self._wrapped.get(id(root))
        return held is not None and bool(held.any())

    def evaluate(self, root: Scalar) -> Array:
        """The value at every point, of the rank of the loops; size 1 where it does not vary."""
        done: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            for node in post_order(root):
                values = [done[id(part)] for part in node.operands()]
                value = done[id(node)] = self._value(node, values)
                if self._check:
                    self._wrapped[id(node)] = self._poison(node, values, value)
        return done[id(root)]

    def _constant(self, value: Any, dtype: str) -> Array:
        return np.full((1,) * len(self._spans), value, np.dtype(dtype))

    def _value(self, node: Scalar, values: list[Array]) -> Array:
        if isinstance(node, Load):
            return self._load(node, values)
        if isinstance(node, Bin):
            if node.op == "truncdiv":
                return np.asarray(intrinsics.require("truncdiv")(*values))
            return np.asarray(_BINARY[node.op](*values))
        if isinstance(node, Cast):
            return np.asarray(intrinsics.require("cast")(values[0], node.to))
        if isinstance(node, Select):
            return np.where(values[0], values[1], values[2])
        if isinstance(node, Intrin):
            function = intrinsics.require(node.name)
            found = function(*values, node.to) if node.to is not None else function(*values)
            return np.asarray(found).astype(node.dtype, copy=False)
        if isinstance(node, Un):
            return np.asarray(_UNARY[node.op](values[0]))
        if isinstance(node, Axis):
            place = self._places[node.name]
            shape = [1] * len(self._spans)
            shape[place] = -1
            return np.arange(*self._spans[place], dtype=node.dtype).reshape(shape)
        if isinstance(node, Acc):
            assert self._acc is not None
            return self._acc
        assert isinstance(node, IntImm | FloatImm | BoolImm)
        return self._constant(node.value, node.dtype)

    def _poison(self, node: Scalar, values: list[Array], value: Array) -> Array | None:
        """Where the value rests on arithmetic that wrapped; None for nowhere."""
        before = [self._wrapped.get(id(part)) for part in node.operands()]
        if isinstance(node, Load):
            return None
        if isinstance(node, Select):
            sides = [np.False_ if side is None else side for side in before[1:]]
            chosen = np.where(values[0], sides[0], sides[1])
            return chosen if chosen.any() else None
        here = wraps(node, values, value)
        found = [mask for mask in (*before, here) if mask is not None]
        return reduce(np.logical_or, found) if found else None

    def _load(self, node: Load, values: list[Array]) -> Array:
        content = self._buffers[node.buffer]
        if content.ndim == 0:
            return content.reshape((1,) * len(self._spans))
        if content.size == 0:
            return self._constant(0, str(content.dtype))
        flat: Any = 0
        step = 1
        for index, size in zip(reversed(values), reversed(content.shape)):
            flat = flat + np.clip(index, 0, size - 1).astype(np.intp) * step
            step *= size
        return np.asarray(content.reshape(-1).take(flat))


def wraps(node: Scalar, values: Sequence[Array], value: Array) -> Array | None:
    """True where ``node`` of these operand values is not the exact ``value``; None: nowhere.

    Args:
        node: arithmetic, a cast or an intrinsic.
        values: of its operands.
        value: the wrapped result.
    """
    if value.dtype.kind not in "iu":
        return None
    found = _wraps(node, values, value)
    return None if found is None or not np.any(found) else np.asarray(found)


def _wraps(node: Scalar, values: Sequence[Array], value: Array) -> Any:
    if isinstance(node, Bin):
        return _of_binary(node.op, values[0], values[1], value)
    if isinstance(node, Un) and node.op in ("neg", "abs") and value.dtype.kind == "i":
        return np.equal(values[0], np.iinfo(value.dtype).min)
    if isinstance(node, Cast) and values[0].dtype.kind in "iu":
        there = value.astype(values[0].dtype)
        return np.logical_or(there != values[0], (there < 0) != (value < 0))
    if isinstance(node, Intrin) and node.name == "fixed_point_multiply":
        x, multiplier, shift = (v.astype(np.float64) for v in values)
        return np.greater(np.abs(x * multiplier * np.exp2(shift - 31) - value), 1)
    return None


def _of_binary(op: str, a: Array, b: Array, value: Array) -> Any:
    if op == "<<":
        amount = b & b.dtype.type(a.dtype.itemsize * 8 - 1)
        return np.not_equal(np.right_shift(value, amount), a)
    if op not in ("+", "-", "*"):
        return None
    if value.dtype.itemsize < 8:
        exact = {"+": np.add, "-": np.subtract, "*": np.multiply}[op]
        return np.not_equal(exact(a.astype(np.int64), b.astype(np.int64)), value)
    if op == "*":
        back = np.floor_divide(value, np.where(a == 0, 1, a))
        lowest = value.dtype.kind == "i" and np.iinfo(value.dtype).min
        turned = np.logical_and(a.astype(np.float64) == -1, b == lowest)
        return np.logical_and(a != 0, np.logical_or(back != b, turned))
    if value.dtype.kind == "u":
        return np.less(value, a) if op == "+" else np.less(a, b)
    if op == "+":
        return np.less((a ^ value) & (b ^ value), 0)
    return np.less((a ^ b) & (a ^ value), 0)
