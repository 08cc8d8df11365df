"""What every expression must satisfy between passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.adt import Match, binders_of, pattern_vars
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.module import IRModule
from compiler.ir.span import AnySpan
from compiler.ir.temp_expr import TempExpr
from compiler.ir.ty import IncompleteType, Type
from compiler.ir.type_solver import parts_of


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant and where it is."""

    what: str
    span: AnySpan | None = None

    def __str__(self) -> str:
        return f"{self.what} ({self.span})" if self.span is not None else self.what


def well_formed(subject: Expr | IRModule) -> list[Problem]:
    """Every broken invariant of an expression, or of all functions of a module.

    Checked: a variable is bound once and used in its scope only; no TempExpr; after inference no
    incomplete annotation; a Primitive function holds calls of operators, tuples, constants, its own
    parameters and lets. A free variable of ``subject`` itself is allowed unless it is a Function.
    """
    if isinstance(subject, IRModule):
        functions = [fn for fn in subject.functions.values() if isinstance(fn, Function)]
        return [problem for fn in functions for problem in well_formed(fn)]
    return _Checker(subject).run()


class _Checker:
    def __init__(self, root: Expr) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.bound_at: dict[Var, Expr] = {}
        self.scope: set[Var] = set()
        self.closed = isinstance(root, Function)

    def problem(self, what: str, node: Expr) -> None:
        self.problems.append(Problem(what, node.span))

    def run(self) -> list[Problem]:
        """Depth first with the scope at hand; a node is entered once."""
        seen: set[Expr] = set()
        stack: list[tuple[Expr | None, Sequence[Var], Sequence[Var]]] = [(self.root, (), ())]
        while stack:
            node, opened, closed = stack.pop()
            self.scope.update(opened)
            self.scope.difference_update(closed)
            if node is None:
                continue
            if isinstance(node, Var):
                self._use(node)
                continue
            if node in seen:
                continue
            seen.add(node)
            self._check(node)
            for var in binders_of(node):
                self._bind(var, node)
            stack.extend(reversed(self._children(node)))
        return self.problems

    def _children(self, node: Expr) -> list[tuple[Expr | None, Sequence[Var], Sequence[Var]]]:
        if isinstance(node, Function):
            return [(node.body, node.params, ()), (None, (), node.params)]
        if isinstance(node, Let):
            var = (node.var,)
            recursive = var if isinstance(node.value, Function) else ()
            return [(node.value, recursive, ()), (node.body, var, ()), (None, (), var)]
        if isinstance(node, Match):
            steps: list[tuple[Expr | None, Sequence[Var], Sequence[Var]]] = [(node.data, (), ())]
            for clause in node.clauses:
                names = pattern_vars(clause.lhs)
                steps += [(clause.rhs, names, ()), (None, (), names)]
            return steps
        return [(child, (), ()) for child in node.operands()]

    def _bind(self, var: Var, node: Expr) -> None:
        if var in self.bound_at:
            self.problem(f"{describe(var)} is bound twice", node)
        self.bound_at[var] = node
        self._annotation(var.type_annotation, var)

    def _use(self, var: Var) -> None:
        if var in self.scope:
            return
        if var in self.bound_at:
            self.problem(f"{describe(var)} is used outside its scope", var)
        elif self.closed:
            self.problem(f"{describe(var)} is not bound", var)
        else:
            self.bound_at.setdefault(var, self.root)
            self.scope.add(var)

    def _annotation(self, ty: Type | None, var: Var) -> None:
        if ty is None or var.checked_type_or_none is None:
            return
        stack = [ty]
        while stack:
            top = stack.pop()
            if isinstance(top, IncompleteType):
                self.problem(f"the annotation of {describe(var)} is incomplete", var)
                return
            stack.extend(parts_of(top))

    def _check(self, node: Expr) -> None:
        if isinstance(node, TempExpr):
            self.problem(f"{type(node).__name__} outside its pass", node)
        elif isinstance(node, Function) and node.has_nonzero_attr("Primitive"):
            self._check_primitive(node)

    def _check_primitive(self, fn: Function) -> None:
        params = set(fn.params)
        bound = set(params)
        seen: set[Expr] = set()
        stack: list[Expr] = [fn.body]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            allowed = isinstance(node, (Tuple, TupleGetItem, Constant, Op, Let))
            if isinstance(node, Call):
                allowed = isinstance(node.op, Op)
            elif isinstance(node, Let):
                bound.add(node.var)
            elif isinstance(node, Var):
                allowed = node in bound
            if not allowed:
                self.problem(f"a Primitive function may not hold {describe(node)}", node)
                continue
            stack.extend(reversed(node.operands()))
