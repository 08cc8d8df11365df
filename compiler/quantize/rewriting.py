"""Rewrites of ``main``, which most steps in front of the integers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.ir.expr import Expr, Function
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt_function


def rewritten(mod: IRModule, made: Callable[[Expr, Mapping[Expr, Expr]], Expr | None]) -> IRModule:
    """The module with what ``made`` makes of the nodes of ``main``, typed; the very same where
    nothing changes. O(nodes).

    Args:
        made: as of ``rebuilt``.
    """
    main: Function = mod["main"]
    new = rebuilt_function(main, made)
    if new is main:
        return mod
    return infer_module(mod.with_function("main", new))
