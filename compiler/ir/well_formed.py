"""Conditions that every expression must satisfy between passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.adt import Match, pattern_vars
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Let,
    Op,
    TempExpr,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.module import IRModule
from compiler.ir.scope_tree import Scope, placed
from compiler.ir.ty import IncompleteType, Type
from compiler.ir.walk import post_order
from compiler.span import AnySpan


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant and where it is."""

    what: str
    span: AnySpan | None = None

    def __str__(self) -> str:
        if self.span is not None:
            return f"{self.what} ({self.span})"
        return self.what


def well_formed(subject: Expr | IRModule) -> list[Problem]:
    """Every broken invariant of an expression, or of all functions of a module.

    Checked: a variable is bound once and every way to a use of it leads through its binder, also
    where nodes are shared; no TempExpr; after inference no
    incomplete annotation; a Primitive function holds calls of operators, tuples, constants, its own
    parameters and lets. A free variable of ``subject`` itself is allowed unless it is a Function.
    """
    if isinstance(subject, IRModule):
        functions = [fn for fn in subject.functions.values() if isinstance(fn, Function)]
        return [problem for fn in functions for problem in well_formed(fn)]
    return _Checker(subject).run()


class _Checker:
    def __init__(self, root: Expr) -> None:
        self.problems: list[Problem] = []
        self.order = list(post_order(root))
        self.closed = isinstance(root, Function)
        self.owner: dict[Expr, Scope] = {}
        self.binders: dict[Var, Scope] = {}

    def problem(self, what: str, node: Expr) -> None:
        self.problems.append(Problem(what, node.span))

    def run(self) -> list[Problem]:
        """Place every node, users first; then look at each once, operands first."""
        self.owner = placed(self.order, self._places)
        for node in self.order:
            self._check(node)
        return self.problems

    def _places(self, node: Expr, here: Scope) -> list[tuple[Expr, Scope]]:
        """Operands with the scope that reads them; the variables bound here get theirs.

        Variables are left out: where they are used is where their users are.
        """
        if isinstance(node, Function):
            inner = self._open(node, here, node.params)
            places = [(node.body, inner)]
        elif isinstance(node, Let):
            inner = self._open(node, here, (node.var,))
            recursive = isinstance(node.value, Function)
            places = [(node.value, inner if recursive else here), (node.body, inner)]
        elif isinstance(node, Match):
            places = [(node.data, here)]
            for clause in node.clauses:
                places.append((clause.rhs, self._open(node, here, pattern_vars(clause.lhs))))
        else:
            leaves = (Constant, Op)
            return [(child, here) for child in node.operands() if not isinstance(child, leaves)]
        return places

    def _open(self, node: Expr, around: Scope, bound: Sequence[Var]) -> Scope:
        scope = Scope(node, around)
        for var in bound:
            if var in self.binders:
                self.problem(f"{describe(var)} is bound twice", node)
            self.binders[var] = scope
            self._annotation(var.type_annotation, var)
        return scope

    def _check_use(self, var: Var) -> None:
        used = self.owner.get(var)
        bound = self.binders.get(var)
        if used is None:
            return  # bound, and never read
        if bound is None:
            if self.closed:
                self.problem(f"{describe(var)} is not bound", var)
        elif not bound.encloses(used):
            self.problem(f"{describe(var)} is used outside its scope", var)

    def _annotation(self, ty: Type | None, var: Var) -> None:
        if ty is None or var.checked_type_or_none is None:
            return
        stack = [ty]
        while stack:
            top = stack.pop()
            if isinstance(top, IncompleteType):
                self.problem(f"the annotation of {describe(var)} is incomplete", var)
                return
            stack.extend(top.members())

    def _check(self, node: Expr) -> None:
        if isinstance(node, Var):
            self._check_use(node)
        elif isinstance(node, TempExpr):
            self.problem(f"{type(node).__name__} outside its pass", node)
        elif isinstance(node, Function) and node.has_nonzero_attr("Primitive"):
            self._check_primitive(node)

    def _check_primitive(self, fn: Function) -> None:
        bound = set(fn.params)

        def allowed_operands(node: Expr) -> tuple[Expr, ...]:
            allowed = isinstance(node, (Tuple, TupleGetItem, Constant, Op, Let))
            if isinstance(node, Call):
                allowed = isinstance(node.op, Op)
            elif isinstance(node, Let):
                bound.add(node.var)
            elif isinstance(node, Var):
                allowed = node in bound
            if not allowed:
                self.problem(f"a Primitive function may not hold {describe(node)}", node)
                return ()
            return node.operands()

        for _ in post_order(fn.body, allowed_operands):
            pass
