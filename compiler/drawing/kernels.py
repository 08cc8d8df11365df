"""Kernels: a function of FuseOps, FuseOpHW or LowerTE is one box, with a row per operator; a
lowered function also shows its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.drawing.wording import Wording, box_title, details_of, type_text
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Tuple, TupleGetItem
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.walk import is_lowered_call, nodes_of
from compiler.span import onnx_nodes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A primitive function as its box shows it.

    Attributes:
        name: its symbol, the first ONNX node that it computes, or "kernel".
        runs_on: the external compiler, or "".
        rows: its operators in order, on hardware each behind its unit.
        details: per row its text, type and span.
        loops: text of a lowered function, "" where there is none.
        params: names of its parameters, as the details use them.
    """

    name: str
    runs_on: str
    rows: tuple[str, ...]
    loops: str = ""
    details: tuple[dict[str, str], ...] = ()
    params: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """First line of the box, behind the number of the call."""
        return f"{self.name} on {self.runs_on}" if self.runs_on else self.name

    def constants_of(self, call: Call) -> str:
        """The parameters that a call binds to constants, with their types, one a line."""
        bound = zip(self.params, call.args)
        types = [
            (name, type_text(arg.checked_type)) for name, arg in bound if isinstance(arg, Constant)
        ]
        return "\n".join(f"{name}: {shown}" for name, shown in types)


def lowered_kernel(call: Call, mod: IRModule) -> Kernel | None:
    """What the box of a ``call_lowered`` shows; None for any other call."""
    if not is_lowered_call(call) or not isinstance(call.args[0], GlobalVar):
        return None
    name = call.args[0].name_hint
    metadata = getattr(call.attrs, "metadata", {})
    source = metadata.get("relay_attrs", {})
    if not mod.contains(name):
        return Kernel(f"@{name}", str(source.get("Compiler", "")), ())
    callee = mod[name]
    if isinstance(callee, LoweredFunction):
        loops = callee.definition(name, lambda array: f"<{array.size} numbers>")
        return Kernel(f"@{name}", str(callee.attrs.get("target", "")), (), loops)
    assert isinstance(callee, Function)
    return replace(kernel_of(callee, source), name=f"@{name}")


def shown_operands(node: Expr) -> tuple[Expr, ...]:
    """Operands as they are drawn: a lowered function's arguments, not the tuple around them."""
    if is_lowered_call(node):
        return node.operands()[2].operands()
    return node.operands()


def kernel_of(function: Function, attrs: Mapping[str, Any] | None = None) -> Kernel:
    """The rows of the box of a call of ``function``; ``attrs``: the attributes from fusion."""
    attrs = function.attrs if attrs is None else attrs
    units = list(zip(attrs.get("hdfg_stages", ()), attrs.get("hdfg_ops", ())))
    rows: list[str] = []
    details: list[dict[str, str]] = []
    wording = Wording()
    for param in function.params:
        wording.name(param, f"%{param.name_hint}")
    place = 0
    for node in nodes_of(function):
        if not isinstance(node, (Call, Tuple, TupleGetItem)):
            continue
        words = f"{wording.number(node)} = {wording.text(node)}"
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            continue
        details.append(details_of(node, words))
        row = f"{box_title(node)}  {type_text(node.checked_type_or_none)}"
        if place < len(units) and node.op.name == units[place][1]:
            row = f"{units[place][0]}: {row}"
            place += 1
        rows.append(row)
    sources = (name for node in nodes_of(function) for name in onnx_nodes(node.span))
    name = str(attrs.get("global_symbol") or next(sources, "kernel"))
    return Kernel(
        name,
        str(attrs.get("Compiler", "")),
        tuple(rows),
        details=tuple(details),
        params=tuple(f"%{param.name_hint}" for param in function.params),
    )
