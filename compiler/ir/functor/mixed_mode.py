"""MixedModeVisitor and MixedModeMutator: iterative on dataflow and on Let chains.

Source: Relay v0.10 ir/expr_functor.cc; the hooks that run before the children are our addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from compiler.errors import RewriteLoopError
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    describe,
)
from compiler.ir.functor.expr_functor import Handler, handler_table
from compiler.ir.functor.mutator import ExprMutator, rebuild_call
from compiler.ir.functor.traversal import dataflow_children, expand_anf, expand_dataflow
from compiler.ir.functor.visitor import ExprVisitor
from compiler.span import restore_origin, set_origin

MAX_PRE_REWRITES = 16

_ATOMS: tuple[type[Expr], ...] = (Constant, Op, GlobalVar)
"""Kinds that a mutator leaves as they are."""


class MixedModeVisitor(ExprVisitor):
    """Runs each handler up to ``visit_limit`` times, operands before users.

    The handlers of Call, Tuple and TupleGetItem find their children visited. ``visit`` is final.

    Raises:
        ValueError: ``visit_limit`` is not within 1 … 9.
    """

    def __init__(self, visit_limit: int = 1) -> None:
        super().__init__()
        if visit_limit < 1:
            raise ValueError(f"visit_limit is {visit_limit}, must be greater than 0")
        if visit_limit > 9:
            raise ValueError(f"visit_limit is {visit_limit}, must be less than 10")
        self.visit_limit = visit_limit
        self._let_parts_visited: set[Let] = set()

    def visit(self, expr: Expr, *args: Any) -> None:
        """Visit what is reachable and below its limit; a saturated ``expr`` is not even counted."""
        if self.visit_counter.get(expr, 0) >= self.visit_limit:
            return
        self._guard.enter(expr)
        try:
            expand_dataflow(expr, self.check_visited, self.visit_leaf)
        finally:
            self._guard.leave()

    def check_visited(self, expr: Expr) -> bool:
        """True, and counted, when the node has reached its limit."""
        count = self.visit_counter.get(expr, 0)
        if count < self.visit_limit:
            return False
        self.visit_counter[expr] = count + 1
        return True

    def visit_leaf(self, expr: Expr) -> None:
        """Run the handler of a node whose dataflow children have been left, then count it."""
        if self.visit_counter.get(expr, 0) < self.visit_limit:
            self.dispatch(expr)
        self.visit_counter[expr] = self.visit_counter.get(expr, 0) + 1

    def visit_call(self, call: Call, *args: Any) -> None:
        """Hook; callee and arguments have been visited."""

    def visit_tuple(self, tup: Tuple, *args: Any) -> None:
        """Hook; the fields have been visited."""

    def visit_tuple_getitem(self, item: TupleGetItem, *args: Any) -> None:
        """Hook; the tuple has been visited."""

    def visit_let(self, let: Let, *args: Any) -> None:
        """Visit a chain of Lets: values and variables downward, then the innermost body."""
        if let in self._let_parts_visited:
            return

        def visit_binding(inner: Let) -> None:
            self.visit(inner.value)
            self.visit(inner.var)

        def leave(inner: Let) -> None:
            if inner.body not in entered:
                self.visit(inner.body)
            entered.add(inner)
            if inner is not let:
                # An overriding visit_let is offered every Let of the chain, whose parts are done.
                self._let_parts_visited.add(inner)
                self.dispatch(inner)
                self._let_parts_visited.discard(inner)
                self.visit_counter[inner] = self.visit_counter.get(inner, 0) + 1

        entered: set[Expr] = set()
        expand_anf(let, visit_binding, leave, self._saturated)

    def _saturated(self, expr: Expr) -> bool:
        return self.visit_counter.get(expr, 0) >= self.visit_limit


class MixedModeMutator(ExprMutator):
    """Rewrites bottom-up through ``rewrite_call``, ``rewrite_tuple``, ``rewrite_tuple_getitem``.

    Each hook gets the original node and the same node over rewritten children; results are not
    visited again. With ``pre`` the hooks ``pre_rewrite_<kind>(node) -> Expr | None`` run first,
    from the root downward: a result other than the node stands in for it and is traversed in turn.
    ``visit`` and the three handlers are final.

    Raises:
        RewriteLoopError: a node was replaced more than 16 times by ``pre_rewrite_*``.
    """

    _pre_hooks: ClassVar[dict[type, Handler]] = {}
    _unchanged: ClassVar[frozenset[type[Expr]]] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._pre_hooks = handler_table(cls, "pre_rewrite_")
        plain = cls.dispatch_visit is MixedModeMutator.dispatch_visit
        cls._unchanged = frozenset(
            kind for kind in _ATOMS if plain and cls._handlers[kind] is ExprMutator.visit_atom
        )

    def __init__(self, pre: bool = False) -> None:
        super().__init__()
        self.pre = pre
        # Kinds that need no entry in the memo, which is the largest table of a rewrite.
        if pre:
            self._atoms = frozenset[type[Expr]]()
        else:
            self._atoms = self._unchanged
        self._stand_in: dict[Expr, Expr] = {}
        self._rounds: dict[Expr, int] = {}

    def visit(self, expr: Expr, *args: Any) -> Expr:
        """The new form of ``expr``."""
        done = self.memo.get(expr)
        if done is not None:
            return done
        self._guard.enter(expr)
        try:
            if self.pre:
                expand = self._expand_stand_in
            else:
                expand = dataflow_children
            expand_dataflow(expr, self.memo.__contains__, self.visit_leaf, expand)
        finally:
            self._guard.leave()
        return self.memo[expr]

    def visit_function(self, function: Function, *args: Any) -> Expr:
        for param in function.params:
            self.visit_binder(param)
        self.follow_order(function)
        return super().visit_function(function, *args)

    def follow_order(self, function: Function) -> None:
        """Visit the body in the order that the function keeps, where it keeps one.

        So each node of a deep graph is read once, not on the way down and on the way up again.
        """
        if function.nodes is None or not function.is_dataflow or self.pre:
            return
        memo = self.memo
        visit_leaf = self.visit_leaf
        atoms = self._atoms
        for node in function.nodes:
            if type(node) not in atoms and node not in memo:
                visit_leaf(node)

    def visit_leaf(self, expr: Expr) -> None:
        """Store the new form of a node whose dataflow children are in the memo."""
        memo = self.memo
        if expr in memo:
            return
        stand_in = self._stand_in.get(expr)
        if stand_in is not None:
            memo[expr] = memo[stand_in]
        elif type(expr) in self._unchanged:
            memo[expr] = expr
        elif expr.span is None:
            memo[expr] = self.dispatch_visit(expr)
        else:
            origin = set_origin(expr.span)
            try:
                memo[expr] = self.dispatch_visit(expr)
            finally:
                restore_origin(origin)

    def dispatch_visit(self, expr: Expr) -> Expr:
        """The handler's answer; a subclass may wrap it."""
        return self.dispatch(expr)

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        """Hook: what stands for ``pre``; ``post`` is ``pre`` over rewritten children."""
        return post

    def rewrite_tuple(self, pre: Tuple, post: Tuple) -> Expr:
        """Hook: as ``rewrite_call``."""
        return post

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
        """Hook: as ``rewrite_call``."""
        return post

    def finish_let(self, pre: Let, post: Let) -> Expr:
        """Hook for drivers: what stands for a Let inside a chain (not its head)."""
        return post

    def visit_call(self, call: Call, *args: Any) -> Expr:
        # As ExprMutator.visit_call, but operands are looked up, which is most of a rewrite's time.
        memo = self.memo
        atoms = self._atoms
        op = call.op
        if type(op) not in atoms:
            op = memo.get(op) or self.visit(op)
        new_args = [a if type(a) in atoms else memo.get(a) or self.visit(a) for a in call.args]
        if call.type_args:
            types = tuple([self.visit_type(t) for t in call.type_args])
        else:
            types = ()
        return self.rewrite_call(call, rebuild_call(call, op, tuple(new_args), types))

    def visit_tuple(self, tup: Tuple, *args: Any) -> Expr:
        post = super().visit_tuple(tup)
        assert isinstance(post, Tuple)
        return self.rewrite_tuple(tup, post)

    def visit_tuple_getitem(self, item: TupleGetItem, *args: Any) -> Expr:
        post = super().visit_tuple_getitem(item)
        assert isinstance(post, TupleGetItem)
        return self.rewrite_tuple_getitem(item, post)

    def visit_let(self, let: Let, *args: Any) -> Expr:
        """Rebuild a chain of Lets, innermost first; variables and values on the way down."""

        def visit_binding(inner: Let) -> None:
            self.visit_binder(inner.var)
            self.visit(inner.value)

        def rebuild(inner: Let) -> None:
            post = inner.with_fields(
                var=self.visit_binder(inner.var),
                value=self.visit(inner.value),
                body=self.visit(inner.body),
            )
            if inner is let:
                results.append(post)
            else:
                self.memo[inner] = self.finish_let(inner, post)

        results: list[Expr] = []
        expand_anf(let, visit_binding, rebuild, self.memo.__contains__)
        return results[0]

    def _expand_stand_in(self, expr: Expr) -> Sequence[Expr]:
        hook = self._pre_hooks.get(type(expr))
        new: Expr | None = None if hook is None else hook(self, expr)
        if new is None or new is expr:
            return dataflow_children(expr)
        rounds = self._rounds.get(expr, 0) + 1
        if rounds > MAX_PRE_REWRITES:
            raise RewriteLoopError(
                f"{type(self).__name__} replaced one node more than {MAX_PRE_REWRITES} times",
                where=describe(expr),
                fix="return None from pre_rewrite_* once the node has its final form",
                span=expr.span,
            )
        self._rounds[new] = rounds
        self._stand_in[expr] = new
        return (new,)
