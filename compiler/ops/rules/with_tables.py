"""Rules that count only where ``QConfig.integer_tables`` asks for integers everywhere."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import DEFAULT_LEVEL
from compiler.ir.ty import bits
from compiler.qtypes.context import QuantizeContext

Rule = Callable[[Call, tuple[Expr, ...], QuantizeContext], Expr | None]

LEVEL = DEFAULT_LEVEL - 5
"""Below the default, so that a registration of one's own takes the place of these rules."""


def with_tables(rule: Rule) -> Rule:
    """``rule``, which declines in runs without ``integer_tables``: there the operator has none."""

    def switched(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
        return rule(ref_call, args, ctx) if ctx.qconfig.integer_tables else None

    return switched


def tabulates(ctx: QuantizeContext) -> bool:
    """True when inputs are stored in so few bits that a table may have an entry per value."""
    return bits(ctx.qconfig.dtype_input) <= 16
