"""ExprRewriter: small rules without a traversal, and the drivers that offer them every node.

Source: Relay v0.10 ir/expr_functor.cc (ExprRewriter, PostOrderRewrite).
"""

# ``post`` is Any where it may have become another kind of node: a rule of one's own takes the kind
# it expects.
# mypy: disable-error-code=no-any-return

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from compiler.errors import RewriteLoopError
from compiler.ir.expr import Expr, Let
from compiler.ir.functor.expr_functor import Handler, handler_table
from compiler.ir.functor.mixed_mode import MixedModeMutator


class ExprRewriter:
    """``rewrite(pre, post)`` dispatches on the kind of ``pre``: a Call goes to ``rewrite_call``.

    ``pre`` is the original node, ``post`` the same node over rewritten children. A kind without a
    rule gives ``post``. ``KIND_NAMES`` holds the names of the kinds.
    """

    _rules: ClassVar[dict[type, Handler]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._rules = handler_table(cls, "rewrite_")

    def rewrite(self, pre: Expr, post: Expr) -> Expr:
        """Return the replacement of ``pre``."""
        rule = self._rules.get(type(pre))
        if rule is None:
            return post
        return rule(self, pre, post)


class ComposedRewriter(ExprRewriter):
    """Offers each node to the rewriters in turn, each seeing the result of the one before."""

    def __init__(self, rewriters: Sequence[ExprRewriter]) -> None:
        self.rewriters = tuple(rewriters)

    def rewrite(self, pre: Expr, post: Expr) -> Expr:
        """Return the replacement that the last rewriter leaves for ``pre``."""
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
