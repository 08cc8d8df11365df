"""Tables of the passes of quantization, and rules that count only with ``integer_tables``."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Args, Call, Expr, Op
from compiler.ir.op import DEFAULT_LEVEL, OpRule
from compiler.ir.ty import bits
from compiler.qtypes.context import QuantizeContext

Rule = Callable[[Call, tuple[Expr, ...], QuantizeContext], Expr | None]
"""``rule(ref_call, new_args, ctx)``: the new form of a call, or None to leave it as it is."""

LEVEL = DEFAULT_LEVEL - 5
"""Below the default, so that a registration of one's own takes the place of these rules."""


class QuantizeRule(OpRule[Rule]):
    """A table of one pass of quantization."""

    def register(
        self, *ops: Op | str, level: int = DEFAULT_LEVEL, needs_tables: bool = False
    ) -> Callable[[Rule], Rule]:
        """See OpRule.

        Args:
            needs_tables: the rule declines in runs without ``QConfig.integer_tables``.
        """
        add = super().register(*ops, level=level)

        def add_switched(rule: Rule) -> Rule:
            def switched(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
                if ctx.qconfig.integer_tables:
                    return rule(ref_call, args, ctx)
                return None

            return add(switched)

        if needs_tables:
            return add_switched
        return add


def tabulates(ctx: QuantizeContext) -> bool:
    """True when inputs are stored in so few bits that a table may have an entry per value."""
    return bits(ctx.qconfig.dtype_input) <= 16
