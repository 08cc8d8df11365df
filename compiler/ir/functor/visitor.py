"""ExprVisitor: visits every node once, natural order, with hooks for types, patterns and spans.

Source: Relay v0.10 ir/expr_functor.cc (ExprVisitor).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from compiler.ir.adt import Clause, Constructor, Match, Pattern
from compiler.ir.expr import Call, Expr, Let, Op, Var
from compiler.ir.functor.expr_functor import WALKED, DepthGuard, ExprFunctor, walks
from compiler.ir.ty import Type, TypeCall
from compiler.span import AnySpan


class ExprVisitor(ExprFunctor[None]):
    """Runs each handler once per node; ``visit_counter`` ends as the use count of every node.

    Calls, tuples, tuple items and lets are walked with an explicit stack as long as the subclass
    overrides none of their handlers. A subclass that overrides one recurses, and raises
    DeepGraphError on graphs deeper than the interpreter's stack.
    """

    _iterative: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._iterative = walks(cls, ExprVisitor)

    def __init__(self) -> None:
        self.visit_counter: dict[Expr, int] = {}
        self._guard = DepthGuard(type(self).__name__)

    def visit(self, expr: Expr, *args: Any) -> None:
        """Visit ``expr`` and what it reaches; a node seen before is only counted."""
        if expr in self.visit_counter:
            self.visit_counter[expr] += 1
            return
        self._guard.enter(expr)
        try:
            if self._iterative and type(expr) in WALKED:
                self._walk(expr)
            else:
                self.dispatch(expr)
                self.visit_counter[expr] = 1
        finally:
            self._guard.leave()

    def use_count(self, expr: Expr) -> int:
        """Count how often the traversals so far reached ``expr``; 0 when never."""
        return self.visit_counter.get(expr, 0)

    def _walk(self, root: Expr) -> None:
        counter = self.visit_counter
        stack = [(root, self._steps(root))]
        while stack:
            node, steps = stack[-1]
            for child in steps:
                if child in counter:
                    counter[child] += 1
                elif type(child) in WALKED:
                    stack.append((child, self._steps(child)))
                    break
                else:
                    self.visit(child)
            else:
                counter[node] = 1
                stack.pop()

    def visit_span(self, span: AnySpan | None) -> None:
        """Hook: the span of every node except operators and constructors."""

    def visit_type(self, ty: Type) -> None:
        """Hook: every type written in the expression."""

    def visit_pattern(self, pattern: Pattern) -> None:
        """Hook: the pattern of every clause."""

    def visit_clause(self, clause: Clause) -> None:
        """Pattern, then right-hand side."""
        self.visit_pattern(clause.lhs)
        self.visit(clause.rhs)

    def _steps(self, expr: Any) -> Iterator[Expr]:
        """Yield the children, as most default handlers do: hooks run between them.

        The recursive handlers and the explicit stack share it, so the order is one and the same.
        """
        self.visit_span(expr.span)
        if isinstance(expr, Call):
            yield expr.op
            for ty in expr.type_args:
                self.visit_type(ty)
            yield from expr.args
        elif isinstance(expr, Let):
            yield from (expr.value, expr.var, expr.body)
        else:
            yield from expr.operands()

    def _visit_steps(self, expr: Any, *args: Any) -> None:
        for child in self._steps(expr):
            self.visit(child)

    visit_global_var = _visit_steps
    visit_constant = _visit_steps
    visit_tuple = _visit_steps
    visit_tuple_getitem = _visit_steps
    visit_call = _visit_steps
    visit_let = _visit_steps
    visit_function = _visit_steps
    visit_if = _visit_steps
    visit_ref_create = _visit_steps
    visit_ref_read = _visit_steps
    visit_ref_write = _visit_steps

    def visit_var(self, var: Var, *args: Any) -> None:
        self.visit_span(var.span)
        if var.type_annotation is not None:
            self.visit_type(var.type_annotation)

    def visit_op(self, op: Op, *args: Any) -> None:
        pass

    def visit_constructor(self, constructor: Constructor, *args: Any) -> None:
        for ty in constructor.inputs:
            self.visit_type(ty)
        self.visit_type(TypeCall(constructor.belong_to))

    def visit_match(self, match: Match, *args: Any) -> None:
        self.visit_span(match.span)
        self.visit(match.data)
        for clause in match.clauses:
            self.visit_clause(clause)


class UseVarVisitor(ExprVisitor):
    """Finds out whether an expression mentions one very Var object.

    >>> from compiler.ir.expr import Function, Var
    >>> x, y = Var("x"), Var("y")
    >>> UseVarVisitor.use_var(x, Function((y,), x)), UseVarVisitor.use_var(x, y)
    (True, False)
    """

    def __init__(self, var: Var) -> None:
        super().__init__()
        self.var = var

    @property
    def used(self) -> bool:
        """True when what was visited mentions the variable; parameters and let variables count."""
        return self.var in self.visit_counter

    @staticmethod
    def use_var(var: Var, expr: Expr) -> bool:
        """True when ``var`` occurs in ``expr``."""
        visitor = UseVarVisitor(var)
        visitor(expr)
        return visitor.used
