"""The reference executor of the loop-level form: numpy, no Python loop over elements.

A Compute is evaluated tile by tile. A loop variable is an arange along its own axis. Every value
has the rank of the loops, and size 1 along the loops that it does not depend on: it is computed
once for all iterations of such a loop.

Its numbers are the definition: other executors have to agree, integers bit for bit, floats up to
the order of sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir.lowered_function import Array
from compiler.lir.builder import at_own_point
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.routines import externs, intrinsics
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
            if node.to is not None:
                found = function(*values, node.to)
            else:
                found = function(*values)
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
        """Mark the places of a value that rest on arithmetic that wrapped; None for nowhere."""
        before = [self._wrapped.get(id(part)) for part in node.operands()]
        if isinstance(node, Load):
            return None
        if isinstance(node, Select):
            sides = [np.False_ if side is None else side for side in before[1:]]
            chosen = np.where(values[0], sides[0], sides[1])
            if chosen.any():
                return chosen
            return None
        here = wraps(node, values, value)
        found = [mask for mask in (*before, here) if mask is not None]
        if found:
            return reduce(np.logical_or, found)
        return None

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
    if found is None or not np.any(found):
        return None
    return np.asarray(found)


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
        if op == "+":
            return np.less(value, a)
        return np.less(a, b)
    if op == "+":
        return np.less((a ^ value) & (b ^ value), 0)
    return np.less((a ^ b) & (a ^ value), 0)


# ---- functions -----------------------------------------------------------------------------------


TILE_POINTS = 1 << 22
"""Points evaluated at once: arrays that stay within tens of megabytes."""


def run(func: PrimFunc, args: Sequence[Array], check_overflow: bool = False) -> list[Array]:
    """The outputs of a function.

    Args:
        func: verified.
        args: one array per parameter, of its shape and dtype.
        check_overflow: raise where integer arithmetic wraps.
    Raises:
        EvaluationError: an argument does not fit its parameter; with ``check_overflow`` an
            element wrapped.
    """
    buffers: dict[Buffer, Array] = dict(zip(func.params, checked_arguments(func, args)))
    buffers.update(func.consts)
    for block in func.blocks:
        if isinstance(block, Extern):
            _run_extern(block, buffers)
        else:
            _run_compute(block, buffers, check_overflow, func.name)
    return [buffers[buffer] for buffer in func.outputs]


def checked_arguments(func: PrimFunc, args: Sequence[Array]) -> list[Array]:
    """The arguments in row-major order.

    Raises:
        EvaluationError: an argument does not fit its parameter.
    """
    if len(args) != len(func.params):
        raise EvaluationError(
            f"@{func.name} takes {len(func.params)} arrays, {len(args)} are given"
        )
    for buffer, arg in zip(func.params, args):
        if arg.shape != buffer.shape or str(arg.dtype) != buffer.dtype:
            raise EvaluationError(
                f"@{func.name}: {buffer.name} is {buffer.dtype}{list(buffer.shape)}, "
                f"the argument is {arg.dtype}{list(arg.shape)}"
            )
    return [np.ascontiguousarray(arg).reshape(b.shape) for b, arg in zip(func.params, args)]


def _run_extern(block: Extern, buffers: dict[Buffer, Array]) -> None:
    with np.errstate(all="ignore"):
        found = externs.require(block.symbol)(block.attrs, [buffers[b] for b in block.ins])
    for buffer, array in zip(block.outs, found):
        buffers[buffer] = np.ascontiguousarray(array).reshape(buffer.shape)


def _run_compute(block: Compute, buffers: dict[Buffer, Array], check: bool, name: str) -> None:
    result = np.empty(block.out.shape, block.out.dtype)
    root = block.value
    for spans in _tiles(block):
        acc, wrapped = _reduced(block, spans, buffers, check) if block.raxes else (None, False)
        tile = Tile(block.axes, spans, buffers, acc, check)
        value = tile.evaluate(root)
        wrapped |= tile.wrapped(root)
        if check and not wrapped and _narrows(value, block.out.dtype):
            wrapped = True
        if wrapped:
            raise EvaluationError(
                f"integer arithmetic wraps in @{name}",
                where=f"the block that fills {block.out.name}",
            )
        with np.errstate(all="ignore"):
            value = np.asarray(intrinsics.require("cast")(value, block.out.dtype))
        _write(block, tile, spans, result, value)
    buffers[block.out] = result


def _narrows(value: Array, dtype: str) -> bool:
    """True when an integer leaves the dtype it is stored in."""
    if value.dtype.kind not in "iu" or dtype.startswith("float") or dtype == "bool":
        return False
    return not np.array_equal(value.astype(dtype).astype(value.dtype), value)


def _write(block: Compute, tile: Tile, spans: Sequence[Span], result: Array, value: Array) -> None:
    shape = tuple(stop - start for start, stop in spans)
    if at_own_point(block.out_index, block.axes):
        result[tuple(slice(*span) for span in spans)] = value
        return
    places = [np.broadcast_to(tile.evaluate(index), shape) for index in block.out_index]
    result[tuple(places)] = np.broadcast_to(value, shape)


def _tiles(block: Compute) -> Iterator[tuple[Span, ...]]:
    """Spans of ``axes`` that cover all points, each of about TILE_POINTS at most."""
    left = math.prod(axis.extent for axis in (*block.axes, *block.raxes))
    spans = []
    for axis in block.axes:
        left //= max(axis.extent, 1)
        step = max(1, min(axis.extent, TILE_POINTS // max(left, 1)))
        starts = range(0, axis.extent, step)
        spans.append([(start, min(start + step, axis.extent)) for start in starts])
    return itertools.product(*spans)


def _reduced(
    block: Compute, spans: tuple[Span, ...], buffers: dict[Buffer, Array], check: bool
) -> tuple[Array, bool]:
    """The accumulator at every point of a tile, and whether it wrapped on the way."""
    assert block.init is not None
    kept = len(block.axes)
    inner = (*spans, *((0, axis.extent) for axis in block.raxes))
    tile = Tile((*block.axes, *block.raxes), inner, buffers, check=check)
    first = tile.evaluate(block.init).reshape(-1)[0]
    value = np.broadcast_to(tile.evaluate(block.expr), [stop - start for start, stop in inner])
    wrapped = check and (tile.wrapped(block.expr) or _sum_wraps(block, value, kept, first))
    with np.errstate(all="ignore"):
        return _combined(block, value, tuple(range(kept, len(inner))), first), wrapped


def _combined(block: Compute, value: Array, axes: tuple[int, ...], first: Any) -> Array:
    acc = value.dtype
    if block.combiner in ("argmax", "argmin"):
        rows = value.reshape(*value.shape[: axes[0]], -1)
        if rows.shape[-1] == 0:
            return np.zeros(rows.shape[:-1], np.int32)
        search = np.argmax if block.combiner == "argmax" else np.argmin
        found = np.asarray(search(rows, axis=-1))
        best = np.take_along_axis(rows, found[..., None], axis=-1)[..., 0]
        # What is no better than the start leaves its number, 0.
        if block.combiner == "argmax":
            better = best > first
        else:
            better = best < first
        better |= (best != best) & (first == first)
        return np.where(better, found, 0).astype(np.int32)
    if block.combiner in ("max", "min"):
        extreme = np.max if block.combiner == "max" else np.min
        return np.asarray(extreme(value, axis=axes, initial=first), acc)
    wide: Any = acc if acc.kind == "f" else np.dtype(np.int64 if acc.kind == "i" else np.uint64)
    if block.combiner == "prod":
        return np.asarray(np.prod(value, axis=axes, dtype=wide) * wide.type(first)).astype(acc)
    if acc.kind == "f" and "acc64" in block.hints:
        wide = np.dtype(np.float64)
    total = np.sum(value, axis=axes, dtype=wide)
    return np.asarray(total + wide.type(first)).astype(acc)


def _sum_wraps(block: Compute, value: Array, kept: int, first: Any) -> bool:
    """True when a partial sum, in order, leaves the accumulator."""
    if block.combiner != "sum" or value.dtype.kind not in "iu" or value.size == 0:
        return False
    info = np.iinfo(value.dtype)
    rows = value.reshape(*value.shape[:kept], -1)
    if value.dtype.itemsize == 8:
        partial = np.cumsum(rows.astype(np.float64), axis=-1) + float(first)
        return bool((partial > float(info.max)).any() or (partial < float(info.min)).any())
    exact = np.cumsum(rows, axis=-1, dtype=np.int64) + int(first)
    return bool((exact > info.max).any() or (exact < info.min).any())
