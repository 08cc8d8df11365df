"""Extern blocks: library routines on whole buffers, by symbol.

``c_routines.register("sort")`` gives a routine its C form; one without is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.errors import CodegenError
from compiler.lir.nodes import Extern
from compiler.named_table import NamedTable
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.lines import Lines

Writer = Callable[[Extern, Mapping[str, str], Arithmetic, Lines], None]
"""``write(block, names, use, lines)``: the statements; ``names`` are C names of the buffers."""

c_routines: NamedTable[Writer] = NamedTable("routine in C", CodegenError)


def write_routine(block: Extern, names: Mapping[str, str], use: Arithmetic, lines: Lines) -> None:
    """Write the statements of an Extern block.

    Raises:
        CodegenError: the routine has no C form.
    """
    c_routines.require(block.symbol)(block, names, use, lines)
