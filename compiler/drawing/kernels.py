"""Kernels: what FuseOps and FuseOpHW put together is drawn as one box, a row per operator."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.drawing.wording import box_title, type_text
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function, Op


@dataclass(frozen=True, slots=True)
class Kernel:
    """A primitive function as its box shows it.

    Attributes:
        name: its symbol, or "kernel".
        runs_on: the external compiler, or "".
        rows: its operators in order, on hardware each behind its unit.
    """

    name: str
    runs_on: str
    rows: tuple[str, ...]

    @property
    def title(self) -> str:
        """First line of the box, behind the number of the call."""
        return f"{self.name} on {self.runs_on}" if self.runs_on else self.name


def is_kernel(function: Function) -> bool:
    """True for what runs as one piece: the drawing shows it inside the box of its call."""
    return function.has_nonzero_attr("Primitive")


def kernel_of(function: Function) -> Kernel:
    """What the box of a call of ``function`` shows."""
    units = list(zip(function.get_attr("hdfg_stages", ()), function.get_attr("hdfg_ops", ())))
    rows: list[str] = []
    place = 0
    for node in post_order(function.body):
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            continue
        row = f"{box_title(node)}  {type_text(node.checked_type_or_none)}"
        if place < len(units) and node.op.name == units[place][1]:
            row = f"{units[place][0]}: {row}"
            place += 1
        rows.append(row)
    name = str(function.get_attr("global_symbol", "kernel"))
    return Kernel(name, str(function.get_attr("Compiler", "")), tuple(rows))
