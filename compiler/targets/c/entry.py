"""A function of the module as C sees it: names, shapes, memory, calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.targets.c.memory_plan import rounded
from compiler.targets.c.placement import Placement
from compiler.targets.c.program import Value


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A function of the module as C sees it.

    Attributes:
        function: its name in the module.
        symbol: its name in C.
        placement: its steps and their memory.
        names: C name of every parameter, then of every result.
    """

    function: str
    symbol: str
    placement: Placement
    names: tuple[str, ...]

    @property
    def params(self) -> tuple[Value, ...]:
        """Tensors read, in order."""
        return self.placement.program.params

    @property
    def results(self) -> tuple[Value, ...]:
        """Tensors written, in order."""
        return self.placement.program.results


def call_lines(symbol: str, args: Sequence[str]) -> list[str]:
    """A call, cut into lines of at most 96 characters."""
    whole = f"{symbol}({', '.join(args)});"
    if len(whole) <= 92:
        return [whole]
    return [f"{symbol}(", *(f"    {arg}," for arg in args[:-1]), f"    {args[-1]});"]


def signature(entry: Entry) -> str:
    """Shapes and dtypes for the reader of the header, and the memory of the function."""
    count = len(entry.params)
    shown = [
        f"{name}: {value.dtype}{list(value.shape)}"
        for name, value in zip(entry.names, (*entry.params, *entry.results))
    ]
    # No parenthesis behind the name: a search for "main(" finds the only main.
    text = f"@{entry.function}: {', '.join(shown[:count])} -> {', '.join(shown[count:])}"
    placement = entry.placement
    if not placement.arena_bytes:
        return text
    return (
        f"{text}\nArena: {rounded(placement.arena_bytes)} bytes; the largest set of values alive "
        f"at once has {placement.lower_bound_bytes}."
    )
