"""Rewrites of ``main``, which most steps in front of the integers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.ir.expr import Expr, Function
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import nodes_of


def rewritten(mod: IRModule, made: Callable[[Expr, Mapping[Expr, Expr]], Expr | None]) -> IRModule:
    """The module with what ``made`` makes of the nodes of ``main``, typed; the very same where
    nothing changes. O(nodes).

    Args:
        made: as of ``rebuilt``.
    """
    main: Function = mod["main"]
    body = rebuilt(nodes_of(main), made)[main.body]
    if body is main.body:
        return mod
    return infer_module(mod.with_function("main", main.with_fields(body=body)))
