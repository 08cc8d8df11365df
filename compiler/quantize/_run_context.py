"""Which QuantizeContext a pass works in: the run's, or a fresh one for a pass called on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.ir.expr import Call, Expr
from compiler.qtypes.context import QuantizeContext

Rule = Callable[[Call, tuple[Expr, ...], QuantizeContext], Expr | None]


def context_or_new(context: QuantizeContext | None) -> QuantizeContext:
    """``context``, or one for the current QConfig."""
    return QuantizeContext() if context is None else context


def constantly(context: QuantizeContext) -> Callable[[Call], Any]:
    """The ``fcontext`` of a ForwardRewriter that hands every rule the same run."""
    return lambda _call: context
