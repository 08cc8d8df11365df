"""One call in place of the arithmetic that exporters and SimplifyInference make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, Function
from compiler.ir.infer_type import infer_expr
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt

Found = TypeVar("Found")


def with_recovered_calls(
    fn: Function,
    mod: IRModule,
    recognise: Callable[[Expr], Found | None],
    make: Callable[[Found, Mapping[Expr, Expr], Expr], Expr],
) -> Function:
    """The function with a call wherever a node is recognised, typed; itself when none is.

    Args:
        recognise: what a node is the last step of, or None.
        make: the call, from what was recognised, the new forms of earlier nodes, and the node.
    """
    nodes = list(post_order(fn.body))
    found = {node: what for node in nodes if (what := recognise(node)) is not None}
    if not found:
        return fn

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        return make(found[node], new, node) if node in found else None

    result = infer_expr(fn.with_fields(body=rebuilt(nodes, made)[fn.body]), mod)
    assert isinstance(result, Function)
    return result
