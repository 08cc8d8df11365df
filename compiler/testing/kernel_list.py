"""Kernels of a fused module as plain lists, for tests and conformance cases."""

from __future__ import annotations

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Let, Op, Var
from compiler.ir.module import IRModule

Kernel = tuple[list[str], int]
"""Operators without "nn.", in post-order, and the number of parameters."""


def kernels(mod: IRModule, function: str = "main") -> list[Kernel]:
    """The primitive functions that ``function`` calls, in order of execution.

    Args:
        mod: after FuseOps.
        function: the global function whose calls are listed.
    """
    called = (node for node in _walk(mod[function]) if isinstance(node, Call))
    bound = {node.var: node.value for node in _walk(mod[function]) if isinstance(node, Let)}
    found: list[Kernel] = []
    for call in called:
        callee = _definition(call.op, mod, bound)
        if isinstance(callee, Function) and callee.has_nonzero_attr("Primitive"):
            found.append((_operators(callee), len(callee.params)))
    return found


def _definition(callee: Expr, mod: IRModule, bound: dict[Var, Expr]) -> object:
    if isinstance(callee, GlobalVar):
        return mod[callee] if callee.name_hint in mod else None
    return bound.get(callee) if isinstance(callee, Var) else callee


def _walk(function: Function) -> list[Expr]:
    """Nodes of a function without those inside its kernels."""
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
