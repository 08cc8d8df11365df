"""ExprRewriter: small rules without a traversal, and the drivers that offer them every node.

Source: Relay v0.10 ir/expr_functor.cc (ExprRewriter, PostOrderRewrite).
"""

# ``post`` is Any where it may have become another kind of node: a rule of one's own takes the kind
# it expects.
# mypy: disable-error-code=no-any-return

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from compiler.errors import RewriteLoopError
from compiler.ir.adt import Constructor, Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
)
from compiler.ir.functor.expr_functor import Handler, handler_table
from compiler.ir.functor.mixed_mode import MixedModeMutator


class ExprRewriter:
    """``rewrite(pre, post)`` dispatches on the kind of ``pre``; rules return ``post`` by default.

    ``pre`` is the original node, ``post`` the same node over rewritten children.
    """

    _rules: ClassVar[dict[type[Expr], Handler]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._rules = handler_table(cls, "rewrite_")

    def rewrite(self, pre: Expr, post: Expr) -> Expr:
        """What stands for ``pre``."""
        rule = self._rules.get(type(pre))
        return post if rule is None else rule(self, pre, post)

    def rewrite_var(self, pre: Var, post: Expr) -> Expr:
        """Rule for a Var."""
        return post

    def rewrite_global_var(self, pre: GlobalVar, post: Expr) -> Expr:
        """Rule for a GlobalVar."""
        return post

    def rewrite_constant(self, pre: Constant, post: Expr) -> Expr:
        """Rule for a Constant."""
        return post

    def rewrite_tuple(self, pre: Tuple, post: Any) -> Expr:
        """Rule for a Tuple."""
        return post

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: Any) -> Expr:
        """Rule for a TupleGetItem."""
        return post

    def rewrite_call(self, pre: Call, post: Any) -> Expr:
        """Rule for a Call."""
        return post

    def rewrite_function(self, pre: Function, post: Any) -> Expr:
        """Rule for a Function literal."""
        return post

    def rewrite_let(self, pre: Let, post: Any) -> Expr:
        """Rule for a Let."""
        return post

    def rewrite_if(self, pre: If, post: Any) -> Expr:
        """Rule for an If."""
        return post

    def rewrite_op(self, pre: Op, post: Expr) -> Expr:
        """Rule for an Op."""
        return post

    def rewrite_ref_create(self, pre: RefCreate, post: Any) -> Expr:
        """Rule for a RefCreate."""
        return post

    def rewrite_ref_read(self, pre: RefRead, post: Any) -> Expr:
        """Rule for a RefRead."""
        return post

    def rewrite_ref_write(self, pre: RefWrite, post: Any) -> Expr:
        """Rule for a RefWrite."""
        return post

    def rewrite_constructor(self, pre: Constructor, post: Expr) -> Expr:
        """Rule for a Constructor."""
        return post

    def rewrite_match(self, pre: Match, post: Any) -> Expr:
        """Rule for a Match."""
        return post


class ComposedRewriter(ExprRewriter):
    """Offers each node to the rewriters in turn, each seeing the result of the one before."""

    def __init__(self, rewriters: Sequence[ExprRewriter]) -> None:
        self.rewriters = tuple(rewriters)

    def rewrite(self, pre: Expr, post: Expr) -> Expr:
        """What the last rewriter leaves for ``pre``."""
        for rewriter in self.rewriters:
            post = rewriter.rewrite(pre, post)
        return post


class _Driver(MixedModeMutator):
    def __init__(self, rewriter: ExprRewriter) -> None:
        super().__init__()
        self.rewriter = rewriter

    def dispatch_visit(self, expr: Expr) -> Expr:
        return self.rewriter.rewrite(expr, self.dispatch(expr))

    def finish_let(self, pre: Let, post: Let) -> Expr:
        return self.rewriter.rewrite(pre, post)


def post_order_rewrite(expr: Expr, rewriter: ExprRewriter) -> Expr:
    """Offer every node to ``rewriter`` once, operands before users.

    Raises:
        MutatorError: a rule turned the variable of a binder into something else.
    """
    return _Driver(rewriter).visit(expr)


def rewrite_until_stable(rewriter: ExprRewriter, expr: Expr, max_iters: int = 20) -> Expr:
    """Repeat ``post_order_rewrite`` until it returns its very input.

    Raises:
        RewriteLoopError: it still changes after ``max_iters`` rounds.
    """
    for _ in range(max_iters):
        new = post_order_rewrite(expr, rewriter)
        if new is expr:
            return expr
        expr = new
    raise RewriteLoopError(
        f"{type(rewriter).__name__} still changes the expression after {max_iters} rounds",
        fix="return post itself where nothing is to be done, or raise max_iters",
    )
