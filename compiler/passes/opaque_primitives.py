"""A walk and mutators that leave fused kernels alone; one knows the types of what it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.ir.expr import Expr, Function
from compiler.ir.functor import MixedModeMutator
from compiler.ir.ty import Type

_MARKS = ("Primitive", "Compiler", "Extern")


def is_kernel(node: object) -> bool:
    """Return whether a node is a function that is compiled as a whole, by whatever compiler."""
    return isinstance(node, Function) and any(mark in node.attrs for mark in _MARKS)


def outside_kernels(nodes: Sequence[Expr], is_kernel: Callable[[Expr], bool]) -> list[Expr]:
    """Nodes without what lies inside of kernels, which are met.

    Args:
        nodes: operands before users.
    """
    inside: set[Expr] = set()
    for node in reversed(nodes):
        if node in inside or is_kernel(node):
            inside.update(node.operands())
    return [node for node in nodes if node not in inside]


class OpaquePrimitives(MixedModeMutator):
    """MixedModeMutator for passes over whole graphs: a Primitive function is one opaque kernel."""

    def visit_function(self, function: Function, *args: Any) -> Expr:
        """The function itself where it is Primitive."""
        if function.has_nonzero_attr("Primitive"):
            return function
        return super().visit_function(function)


class TypedMutator(OpaquePrimitives):
    """A mutator whose results have the types of what they replace; ``types`` are of new nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[Expr, Type] = {}

    def type_of(self, expr: Expr) -> Type:
        """Type of an original node, or of a new one by what it replaces."""
        ty = expr.checked_type_or_none
        if ty is None:
            return self.types[expr]
        return ty

    def dispatch_visit(self, expr: Expr) -> Expr:
        new = self.dispatch(expr)
        ty = expr.checked_type_or_none
        if new.checked_type_or_none is None and ty is not None:
            self.types[new] = ty
        return new
