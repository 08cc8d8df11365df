"""PatternFunctor, PatternVisitor, PatternMutator: the same trio for the patterns of Match.

Source: Relay v0.10 pattern_functor.h.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TypeVar

from compiler.errors import MutatorError
from compiler.ir.adt import Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard
from compiler.ir.expr import Expr, Var
from compiler.ir.functor.expr_functor import KindFunctor

R = TypeVar("R")

_KINDS: dict[type, str] = {
    PatternWildcard: "wildcard",
    PatternVar: "pattern_var",
    PatternConstructor: "pattern_constructor",
    PatternTuple: "pattern_tuple",
}


class PatternFunctor(KindFunctor[R]):
    """``visit(pattern, *args)`` calls the handler of the kind, or visit_default."""

    kinds = _KINDS
    noun = "Pattern"


class PatternVisitor(PatternFunctor[None]):
    """Visits the patterns inside a pattern, left to right, and the variables they bind."""

    def visit_var(self, var: Var) -> None:
        """Hook: a variable a pattern binds."""

    def visit_wildcard(self, pattern: PatternWildcard) -> None:
        """Hook: a wildcard."""

    def visit_pattern_var(self, pattern: PatternVar) -> None:
        """The variable."""
        self.visit_var(pattern.var)

    def visit_pattern_constructor(self, pattern: PatternConstructor | PatternTuple) -> None:
        """The patterns of the fields."""
        for inner in pattern.patterns:
            self.visit(inner)

    visit_pattern_tuple = visit_pattern_constructor


class PatternMutator(PatternFunctor[Pattern]):
    """Rebuilds a pattern; the very object when nothing inside it changed."""

    def visit_var(self, var: Var) -> Expr:
        """Hook: the new form of a bound variable; called once per place that binds it."""
        return var

    def visit_wildcard(self, pattern: PatternWildcard) -> Pattern:
        """Itself."""
        return pattern

    def visit_pattern_var(self, pattern: PatternVar) -> Pattern:
        """A pattern of the new variable.

        Raises:
            MutatorError: ``visit_var`` gave something that is not a Var.
        """
        var = self.visit_var(pattern.var)
        if not isinstance(var, Var):
            raise MutatorError(
                f"{type(self).__name__} turned the pattern variable %{pattern.var.name_hint} "
                f"into a {type(var).__name__}",
                fix="a pattern can bind a Var only",
            )
        if var is pattern.var:
            return pattern
        return PatternVar(var)

    def visit_pattern_constructor(self, pattern: PatternConstructor | PatternTuple) -> Pattern:
        """The same constructor, or a tuple, on new patterns."""
        inner = tuple([self.visit(p) for p in pattern.patterns])
        same = all(map(operator.is_, inner, pattern.patterns))
        if same:
            return pattern
        return replace(pattern, patterns=inner)

    visit_pattern_tuple = visit_pattern_constructor
