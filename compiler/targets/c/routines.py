"""Extern blocks: library routines on whole buffers, by symbol.

``c_routines.register("sort")`` gives a routine its C form; one without is an error that names it.
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
    kind = unsigned_of(source.dtype) if whole else c_type(source.dtype)
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
