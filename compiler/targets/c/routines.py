"""Extern blocks: library routines on whole buffers, by symbol.

``c_routines.register("topk")`` gives a routine its C form; one without is an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from compiler.errors import CodegenError
from compiler.lir.nodes import Extern
from compiler.lir.ranges import is_whole
from compiler.named_table import NamedTable
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import c_type, unsigned_of
from compiler.targets.c.lines import Lines

Writer = Callable[[Extern, Mapping[str, str], Arithmetic, Lines], None]
"""``write(block, names, use, lines)``: the statements; ``names`` are C names of the buffers."""

c_routines: NamedTable[Writer] = NamedTable("routine in C", CodegenError)


@c_routines.register("cumsum")
def write_cumsum(block: Extern, names: Mapping[str, str], use: Arithmetic, lines: Lines) -> None:
    """Running sums along ``axis``; with ``exclusive`` without the element itself."""
    (source,), (target,) = block.ins, block.outs
    axis = block.attrs["axis"] % max(len(source.shape), 1)
    count = source.shape[axis] if source.shape else 1
    step = math.prod(source.shape[axis + 1 :])
    whole = is_whole(source.dtype)
    if whole:
        kind = unsigned_of(source.dtype)
    else:
        kind = c_type(source.dtype)
    finished = use.wrap(source.dtype, "acc") if whole else "acc"
    store = f"{names[target.name]}[at] = {finished};"
    with (
        lines.block(f"for (int32_t k = 0; k < {source.size // max(count * step, 1)}; ++k)"),
        lines.block(f"for (int32_t j = 0; j < {step}; ++j)"),
    ):
        lines(f"{kind} acc = 0;")
        with lines.block(f"for (int32_t i = 0; i < {count}; ++i)"):
            lines(f"const int32_t at = (k * {count} + i) * {step} + j;")
            if block.attrs["exclusive"]:
                lines(store)
            lines(f"acc += ({kind}){names[source.name]}[at];")
            if not block.attrs["exclusive"]:
                lines(store)


@c_routines.register("scatter_nd")
def write_scatter(block: Extern, names: Mapping[str, str], use: Arithmetic, lines: Lines) -> None:
    """Rows of updates into a copy of the data; an index outside is the nearest row."""
    data, indices, updates = block.ins
    (target,), mode, kind = block.outs, block.attrs["mode"], c_type(data.dtype)
    (rows, width), out = data.shape, names[target.name]
    with lines.block(f"for (int32_t i = 0; i < {data.size}; ++i)"):
        lines(f"{out}[i] = {names[data.name]}[i];")
    with lines.block(f"for (int32_t i = 0; i < {updates.shape[0]}; ++i)"):
        lines(f"const int64_t at = {names[indices.name]}[i];")
        lines(f"const int32_t row = (int32_t)(at < 0 ? 0 : at > {rows - 1} ? {rows - 1} : at);")
        lines(f"{kind} *const to = {out} + row * {width};")
        with lines.block(f"for (int32_t j = 0; j < {width}; ++j)"):
            lines(f"const {kind} update = {names[updates.name]}[i * {width} + j];")
            lines(f"to[j] = {_combined(mode, data.dtype, use)};")


def _combined(mode: str, dtype: str, use: Arithmetic) -> str:
    """An element of the result and an update, in C."""
    if mode == "update":
        return "update"
    if mode in ("max", "min"):
        return f"{use(mode, dtype)}(to[j], update)"
    sign = "+" if mode == "add" else "*"
    if not is_whole(dtype):
        return f"to[j] {sign} update"
    unsigned = unsigned_of(dtype)
    return use.wrap(dtype, f"({unsigned})to[j] {sign} ({unsigned})update")
