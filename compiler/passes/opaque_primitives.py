"""A mutator that leaves fused kernels alone."""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Expr, Function
from compiler.ir.functor import MixedModeMutator


class OpaquePrimitives(MixedModeMutator):
    """MixedModeMutator for passes over whole graphs: a Primitive function is one opaque kernel."""

    def visit_function(self, function: Function, *args: Any) -> Expr:
        """The function itself where it is Primitive."""
        if function.has_nonzero_attr("Primitive"):
            return function
        return super().visit_function(function)
