"""Reads the result of FuseOpHW from a module: functions of groups, and calls on the host."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.fusion.hardware.dfg import Creator, Node
from compiler.fusion.hardware.stage import MARKERS
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function
from compiler.ir.module import IRModule
from compiler.passes.opaque_primitives import is_kernel

Place = tuple[str, Node]
"""Name of a global function, and a node in it."""


def group_functions(mod: IRModule, name: str | None = None) -> list[Function]:
    """Functions of hardware groups, of description ``name`` or of any, in order of creation."""
    bodies = [post_order(fn) for fn in mod.functions.values() if isinstance(fn, Function)]
    groups = [n for body in bodies for n in body if isinstance(n, Function) and is_group(n, name)]
    found = {group.get_attr("global_symbol"): group for group in groups}
    return [found[symbol] for symbol in sorted(found, key=_creation)]


def is_group(node: object, name: str | None = None) -> bool:
    """True for the function of a hardware group (of description ``name``)."""
    if not isinstance(node, Function) or "hdfg_stages" not in node.attrs:
        return False
    return name is None or node.get_attr("Compiler") == name


def _creation(symbol: str) -> tuple[str, int]:
    prefix, _, number = symbol.rpartition("_")
    return prefix, int(number)


def group_steps(function: Function) -> list[tuple[str, Call]]:
    """The calls of a group that occupy a unit, each with the unit's name, in pipeline order."""
    stages = function.get_attr("hdfg_stages")
    ops = function.get_attr("hdfg_ops")
    steps: list[tuple[str, Call]] = []
    for node in Creator.prepare(function).calls():
        place = len(steps)
        if place < len(ops) and not node.constant and node.op_name == ops[place]:
            steps.append((stages[place], node.call))
    return steps


def host_nodes(mod: IRModule) -> Iterator[Place]:
    """Operator calls outside groups and other kernels, in post-order, function by function."""
    for gv, function in mod.functions.items():
        if not isinstance(function, Function) or is_kernel(function):
            continue
        scopes = [function]
        while scopes:
            dfg = Creator.prepare(scopes.pop())
            for node in dfg.nodes:
                if isinstance(node.ref, Function) and not is_kernel(node.ref):
                    scopes.append(node.ref)
                elif node.op_name is not None and node.op_name not in MARKERS:
                    yield gv.name_hint, node
