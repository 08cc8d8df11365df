"""Small analyses; every walk keeps a stack of its own and visits each node once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from operator import methodcaller

from compiler.errors import BindError
from compiler.ir.adt import Match
from compiler.ir.adt import binders_of as binders_of
from compiler.ir.adt import free_vars as free_vars
from compiler.ir.adt import pattern_vars as pattern_vars
from compiler.ir.expr import Call, Expr, Function, Var, describe, is_op_call
from compiler.ir.rebuild import substitute
from compiler.ir.walk import post_order as post_order
from compiler.ir.well_formed import Problem as Problem
from compiler.ir.well_formed import well_formed as well_formed


def post_order_visit(root: Expr, visit: Callable[[Expr], None]) -> None:
    """Call ``visit`` on every node once, operands first."""
    for node in post_order(root):
        visit(node)


def count_uses(root: Expr) -> Counter[Expr]:
    """Number of parent edges per node; an argument used twice by one call counts 2."""
    return Counter(chain.from_iterable(map(methodcaller("operands"), post_order(root))))


def all_vars(root: Expr) -> list[Var]:
    """Every variable that occurs, bound or free, in order of first occurrence (post-order)."""
    found: dict[Var, None] = {}
    for node in post_order(root):
        if isinstance(node, Var):
            found[node] = None
        elif isinstance(node, Match):
            found.update(dict.fromkeys(binders_of(node)))
    return list(found)


def bound_vars(root: Expr) -> list[Var]:
    """Variables bound by a function, let or pattern, in order of first occurrence."""
    bound = _bound_set(root)
    return [v for v in all_vars(root) if v in bound]


def _bound_set(root: Expr) -> set[Var]:
    return {v for node in post_order(root) for v in binders_of(node)}


def bind(expr: Expr, args: Mapping[Var, Expr]) -> Expr:
    """Substitute variables.

    On a Function, bound params leave the parameter list and free variables of the substituted
    values join its end, so that the result is closed if ``expr`` was.

    Raises:
        BindError: a key is bound by a let, a pattern or an inner function.
    """
    if not args:
        return expr
    body = expr.body if isinstance(expr, Function) else expr
    inner = _bound_set(body)
    for var in args:
        if var in inner:
            raise BindError(
                f"cannot bind {describe(var)}: it is bound inside the expression itself",
                fix="bind parameters or free variables only",
                span=var.span,
            )
    new_body = substitute(body, args)
    if not isinstance(expr, Function):
        return new_body
    kept = tuple(p for p in expr.params if p not in args)
    if len(kept) == len(expr.params) and new_body is body:
        return expr
    captured = {*free_vars(expr), *kept}
    added = tuple(v for v in free_vars(new_body) if v not in captured)
    return expr.with_fields(params=(*kept, *added), body=new_body)


def is_constant_expr(expr: Expr) -> bool:
    """True when no variable is reached from ``expr``."""
    return not any(isinstance(node, Var) for node in post_order(expr))


check_constant = is_constant_expr
"""Relay's name."""


def extract_calls(expr: Expr, op_name: str) -> list[Call]:
    """Every call of the operator ``op_name``, in post-order."""
    return [n for n in post_order(expr) if is_op_call(n, op_name) and isinstance(n, Call)]
