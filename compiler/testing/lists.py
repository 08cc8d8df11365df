"""Kernels and hardware groups of a module as plain lists, for tests."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.fusion.hardware.group_calls import group_functions, host_nodes
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Let, Op, Var
from compiler.ir.module import IRModule

Kernel = tuple[list[str], int]
"""Operators without "nn.", in post-order, and the number of parameters."""


def kernels(mod: IRModule, function: str = "main") -> list[Kernel]:
    """The primitive functions that ``function`` calls, in order of execution.

    Other global functions are followed where they are called, except into themselves.

    Args:
        mod: after FuseOps.
        function: the global function that is listed.
    """
    found: list[Kernel] = []
    running = [(function, _callees(mod, function))]
    while running:
        callee = next(running[-1][1], None)
        if callee is None:
            running.pop()
        elif isinstance(callee, Function):
            found.append((_operators(callee), len(callee.params)))
        elif all(callee != name for name, _ in running):
            running.append((callee, _callees(mod, callee)))
    return found


def _callees(mod: IRModule, name: str) -> Iterator[Function | str]:
    """Kernels, and names of other global functions, as one function calls them."""
    nodes = _walk(mod[name])
    bound = {node.var: node.value for node in nodes if isinstance(node, Let)}
    for call in nodes:
        if not isinstance(call, Call):
            continue
        callee = _definition(call.op, mod, bound)
        if not isinstance(callee, Function):
            continue
        if callee.has_nonzero_attr("Primitive"):
            yield callee
        elif isinstance(call.op, GlobalVar):
            yield call.op.name_hint


def _definition(callee: Expr, mod: IRModule, bound: dict[Var, Expr]) -> object:
    if isinstance(callee, GlobalVar):
        if callee.name_hint in mod:
            return mod[callee]
        return None
    if isinstance(callee, Var):
        return bound.get(callee)
    return callee


def _walk(function: Function) -> list[Expr]:
    """Nodes of a function without the nodes inside its kernels."""
    inside = {
        node
        for kernel in post_order(function)
        if isinstance(kernel, Function) and kernel.has_nonzero_attr("Primitive")
        for node in post_order(kernel)
        if node is not kernel
    }
    return [node for node in post_order(function) if node not in inside]


def _operators(kernel: Function) -> list[str]:
    return [
        node.op.name.removeprefix("nn.")
        for node in post_order(kernel)
        if isinstance(node, Call) and isinstance(node.op, Op)
    ]


HardwareGroup = tuple[list[str], list[str], int]
"""Units, operators, number of parameters."""


def hw_groups(mod: IRModule, name: str) -> list[HardwareGroup]:
    """The groups that ``FuseOpHW`` made for description ``name``, in order of creation."""
    return [
        (
            list(function.get_attr("hdfg_stages")),
            list(function.get_attr("hdfg_ops")),
            len(function.params),
        )
        for function in group_functions(mod, name)
    ]


def hw_host_ops(mod: IRModule) -> list[str]:
    """Operators called outside every group, in post-order, function by function; markers such as
    ``annotation.stop_fusion`` left out."""
    return [node.op_name or "" for _, node in host_nodes(mod)]
