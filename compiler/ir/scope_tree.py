"""Scope: a tree of regions in which the nearest common one is found in O(log depth).

Every region knows its parent and one ancestor further up, chosen so that any walk to the root takes
logarithmically many steps. Regions have weights, and the largest on a way up is found as quickly.
``placed`` finds the scope of every node of an expression.
Source of the method: Myers, "An applicative random-access stack", 1983.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from compiler.ir.adt import Match
from compiler.ir.expr import Expr, Function, If


class Scope:
    """A region of a function, such as a branch.

    Attributes:
        construct: the node that opens it; None for the outermost.
        parent: the region around it.
        weight: of the step to the parent.
        depth: regions around it.
        jump: an ancestor some way up; None for the outermost.
        jump_weight: the largest weight from this region, included, to ``jump``, excluded.
    """

    __slots__ = ("construct", "depth", "jump", "jump_weight", "parent", "weight")

    parent: Scope | None
    jump: Scope | None

    def __init__(self, construct: Any, parent: Scope | None = None, weight: int = 0) -> None:
        self.construct = construct
        self.parent = self.jump = parent
        self.weight = self.jump_weight = weight
        self.depth = 0
        if parent is None:
            return
        self.depth = parent.depth + 1
        near = parent.jump
        far = near.jump if near is not None else None
        # Two jumps of equal length become one of their sum.
        if near and far and parent.depth - near.depth == near.depth - far.depth:
            self.jump = far
            self.jump_weight = max(weight, parent.jump_weight, near.jump_weight)

    def climb(self, depth: int, weight: int = 0) -> tuple[Scope, int]:
        """The region of this depth around it, or itself, and the largest of ``weight`` and the
        weights on the way there; ``depth`` is at most its own."""
        scope = self
        while scope.depth > depth:
            up = scope.jump
            passed = scope.jump_weight
            if up is None or up.depth < depth:
                up = scope.parent
                passed = scope.weight
            assert up is not None
            scope = up
            weight = max(weight, passed)
        return scope, weight

    def at_depth(self, depth: int) -> Scope:
        """The region of this depth around it, or itself; ``depth`` is at most its own."""
        return self.climb(depth)[0]

    def encloses(self, other: Scope) -> bool:
        """True when ``other`` lies within it, or is it."""
        return other.depth >= self.depth and other.at_depth(self.depth) is self


def ways_to_common(a: Scope, b: Scope, weight: int = 0) -> tuple[Scope, int]:
    """The innermost region around both, of one tree, and the largest of ``weight`` and the weights
    on the ways there."""
    depth = min(a.depth, b.depth)
    a, weight = a.climb(depth, weight)
    b, weight = b.climb(depth, weight)
    while a is not b:
        if a.jump is b.jump:
            weight = max(weight, a.weight, b.weight)
            up_a = a.parent
            up_b = b.parent
        else:
            weight = max(weight, a.jump_weight, b.jump_weight)
            up_a = a.jump
            up_b = b.jump
        assert up_a is not None
        assert up_b is not None
        a = up_a
        b = up_b
    return a, weight


def nearest_common(a: Scope, b: Scope) -> Scope:
    """The innermost region around both; of one tree."""
    return ways_to_common(a, b)[0]


def placed(
    order: Sequence[Expr], places: Callable[[Expr, Scope], Iterable[tuple[Expr, Scope]]]
) -> dict[Expr, Scope]:
    """The scope of every node: the innermost one around all its uses.

    Args:
        order: operands before users; the last one is the root.
        places: ``places(node, scope)`` gives the operands of a node in a scope, each with the scope
            that reads it; operands that it leaves out have none.
    """
    owner = {order[-1]: Scope(None)}
    for node in reversed(order):
        here = owner.get(node)
        for child, scope in () if here is None else places(node, here):
            held = owner.get(child)
            owner[child] = scope if held is None else nearest_common(held, scope)
    return owner


def scoped_operands(
    node: Expr, here: Scope, opened: Callable[[Expr, Scope], Scope]
) -> list[tuple[Expr, Scope]]:
    """Operands of a node, each with the scope that reads it.

    Args:
        opened: ``opened(result, here)`` makes the scope of a body, a branch or a clause.
    """
    if isinstance(node, Function):
        inner = opened(node.body, here)
        return [(operand, inner) for operand in node.operands()]
    if isinstance(node, If):
        first = node.cond
        results = [node.true_branch, node.false_branch]
    elif isinstance(node, Match):
        first = node.data
        results = [clause.rhs for clause in node.clauses]
    else:
        return [(operand, here) for operand in node.operands()]
    return [(first, here), *((result, opened(result, here)) for result in results)]
