"""ExprMutator: rebuilds an expression, keeping every node none of whose children changed.

Source: Relay v0.10 ir/expr_functor.cc (ExprMutator).
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from compiler.errors import MutatorError
from compiler.ir.adt import Clause, Match, Pattern
from compiler.ir.expr import Call, Expr, Function, Let, Var, describe
from compiler.ir.functor.expr_functor import WALKED, DepthGuard, ExprFunctor, walks
from compiler.ir.functor.traversal import expand_dataflow
from compiler.ir.rebuild import call_over, typed_alike, with_operands
from compiler.ir.ty import Type, TypeVar


class ExprMutator(ExprFunctor[Expr]):
    """Rewrites each node once (``memo``), so what was shared stays shared.

    Handlers may call ``self.visit`` on children in any order. A handler may also replace a variable
    (``visit_var``): its binder and its uses then agree. Deep graphs: as ExprVisitor.
    """

    _iterative: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._iterative = walks(cls, ExprMutator)

    def __init__(self) -> None:
        self.memo: dict[Expr, Expr] = {}
        self._guard = DepthGuard(type(self).__name__)

    def visit(self, expr: Expr, *args: Any) -> Expr:
        """The new form of ``expr``: from the memo, or made by its handler."""
        memo = self.memo
        done = memo.get(expr)
        if done is not None:
            return done
        self._guard.enter(expr)
        try:
            if self._iterative and type(expr) in WALKED:
                expand_dataflow(expr, memo.__contains__, self._rebuild, _children)
            else:
                memo[expr] = self.dispatch(expr)
        finally:
            self._guard.leave()
        return memo[expr]

    def mutate(self, function: Function) -> Function:
        """The new form of a function, which has to be a function."""
        new = self.visit(function)
        assert isinstance(new, Function)
        return new

    def _rebuild(self, expr: Expr) -> None:
        if expr not in self.memo:
            self.memo[expr] = self.dispatch(expr)

    def visit_type(self, ty: Type) -> Type:
        """Hook: the new form of a type written in the expression."""
        return ty

    def visit_pattern(self, pattern: Pattern) -> Pattern:
        """Hook: the new form of a clause's pattern."""
        return pattern

    def visit_clause(self, clause: Clause) -> Clause:
        """A clause over the new pattern and right-hand side; itself when both are unchanged."""
        lhs = self.visit_pattern(clause.lhs)
        rhs = self.visit(clause.rhs)
        if lhs is clause.lhs and rhs is clause.rhs:
            return clause
        return Clause(lhs, rhs)

    def visit_binder(self, var: Var) -> Var:
        """The new form of a variable at the place that binds it.

        Raises:
            MutatorError: it became something other than a Var.
        """
        new = self.visit(var)
        if not isinstance(new, Var):
            raise MutatorError(
                f"{type(self).__name__} turned the bound variable %{var.name_hint} into a "
                f"{type(new).__name__}",
                where=describe(new),
                fix="replace uses of the variable with analysis.bind, which drops the binder",
                span=var.span,
            )
        return new

    def visit_var(self, var: Var, *args: Any) -> Expr:
        if var.type_annotation is None:
            return var
        return var.with_fields(type_annotation=self.visit_type(var.type_annotation))

    def visit_atom(self, expr: Any, *args: Any) -> Any:
        """The node itself."""
        return expr

    visit_global_var = visit_atom
    visit_constant = visit_atom
    visit_op = visit_atom
    visit_constructor = visit_atom

    def _visit_operands(self, expr: Any, *args: Any) -> Expr:
        return with_operands(expr, [self.visit(child) for child in expr.operands()])

    visit_tuple = _visit_operands
    visit_tuple_getitem = _visit_operands
    visit_if = _visit_operands
    visit_ref_create = _visit_operands
    visit_ref_read = _visit_operands
    visit_ref_write = _visit_operands

    def visit_call(self, call: Call, *args: Any) -> Expr:
        op = self.visit(call.op)
        if call.type_args:
            type_args = tuple([self.visit_type(t) for t in call.type_args])
        else:
            type_args = ()
        return rebuild_call(call, op, tuple([self.visit(a) for a in call.args]), type_args)

    def visit_let(self, let: Let, *args: Any) -> Expr:
        var = self.visit_binder(let.var)
        value = self.visit(let.value)
        return let.with_fields(var=var, value=value, body=self.visit(let.body))

    def visit_function(self, function: Function, *args: Any) -> Expr:
        type_params: list[TypeVar] = []
        for param in function.type_params:
            new = self.visit_type(param)
            if not isinstance(new, TypeVar):
                raise MutatorError(
                    f"{type(self).__name__} turned the type parameter {param} into {new}"
                )
            type_params.append(new)
        params = tuple([self.visit_binder(p) for p in function.params])
        ret_type = function.ret_type and self.visit_type(function.ret_type)
        return function.with_fields(
            type_params=tuple(type_params),
            params=params,
            ret_type=ret_type,
            body=self.visit(function.body),
        )

    def visit_match(self, match: Match, *args: Any) -> Expr:
        clauses = tuple([self.visit_clause(c) for c in match.clauses])
        return match.with_fields(clauses=clauses, data=self.visit(match.data))


def rebuild_call(
    call: Call, op: Expr, args: tuple[Expr, ...], type_args: tuple[Type, ...] = ()
) -> Call:
    """``call`` itself when nothing changed, else a call with the same attrs, span and device.

    Over arguments of the same types an operator's call has the type of ``call``.
    """
    if (
        op is call.op
        and args == call.args  # of nodes, which are equal to themselves only
        and all(map(operator.is_, type_args, call.type_args))
    ):
        return call
    new = call_over(call, op, args, type_args)
    if type_args:
        return new
    return typed_alike(call, new)


def _children(expr: Expr) -> tuple[Expr, ...]:
    if type(expr) in WALKED:
        return expr.operands()[::-1]
    return ()
