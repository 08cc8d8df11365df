"""The reference executor of the loop-level form: numpy, no Python loop over elements.

A Compute is evaluated tile by tile (``vectorised``). Its numbers are the definition: other
executors have to agree, integers bit for bit, floats up to the order of sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir.lowered_function import Array
from compiler.lir.builder import at_own_point
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.routines import externs, intrinsics
from compiler.lir.scalars import Buffer
from compiler.lir.vectorised import Span, Tile

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
    result, root = np.empty(block.out.shape, block.out.dtype), block.value
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
        better = best > first if block.combiner == "argmax" else best < first
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
