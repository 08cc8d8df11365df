"""FQPartitionRewrite: where an operator draws the borders of low-precision regions."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Expr, TempExpr
from compiler.ops.rules.integer_calls import border
from compiler.ops.rules.with_tables import QuantizeRule

FQPartitionRewrite = QuantizeRule("FQPartitionRewrite", asked_by="QuantizePartition")
"""The call with borders."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QPartitionExpr(TempExpr):
    """``expr`` is the output of an integer region; ``realize`` inserts the border of the region."""

    expr: Expr
    dtype: str = "int8"

    def realize(self) -> Expr:
        """The border: cast_hint to the storage dtype of inputs, then stop_fusion."""
        return border(self.expr, self.dtype)


def is_partitioned(expr: Expr) -> bool:
    """True for the output of an integer region."""
    return isinstance(expr, QPartitionExpr)


def inner(expr: Expr) -> Expr:
    """The expression without its mark; itself when it has none."""
    if isinstance(expr, QPartitionExpr):
        return expr.expr
    return expr


def with_border(expr: Expr) -> Expr:
    """A new border behind a partitioned expression; anything else as it is."""
    if isinstance(expr, QPartitionExpr):
        return expr.realize()
    return expr
