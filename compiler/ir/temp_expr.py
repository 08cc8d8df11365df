"""TempExpr: an expression that lives only inside one pass."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TempExpr(Expr):
    """Base of the temporary values a ForwardRewriter's rules pass to each other."""

    def realize(self) -> Expr:
        """The ordinary expression that stands for this value outside its pass."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is realized")
