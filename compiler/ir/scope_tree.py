"""Scope: a tree of regions in which the nearest common one is found in O(log depth).

Every region knows its parent and one ancestor further up, chosen so that any walk to the root takes
logarithmically many steps. Source of the method: Myers, "An applicative random-access stack", 1983.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir.expr import Expr


@dataclass(slots=True, eq=False)
class Scope:
    """A region of a function, such as a branch.

    Attributes:
        construct: the node that opens it; None for the outermost.
        parent: the region around it.
        depth: regions around it.
        jump: an ancestor some way up; None for the outermost.
    """

    construct: Expr | None
    parent: Scope | None = None
    depth: int = field(init=False, default=0)
    jump: Scope | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        parent = self.parent
        if parent is None:
            return
        self.depth = parent.depth + 1
        far = parent.jump
        farther = far.jump if far is not None else None
        # Two jumps of equal length become one of their sum.
        joined = (
            far is not None
            and farther is not None
            and parent.depth - far.depth == far.depth - farther.depth
        )
        self.jump = farther if joined else parent

    def at_depth(self, depth: int) -> Scope:
        """The region of this depth around it, or itself; ``depth`` is at most its own."""
        scope = self
        while scope.depth > depth:
            assert scope.parent is not None
            assert scope.jump is not None
            scope = scope.jump if scope.jump.depth >= depth else scope.parent
        return scope

    def encloses(self, other: Scope) -> bool:
        """True when ``other`` lies within it, or is it."""
        return other.depth >= self.depth and other.at_depth(self.depth) is self


def nearest_common(a: Scope, b: Scope) -> Scope:
    """The innermost region around both; of one tree."""
    depth = min(a.depth, b.depth)
    a, b = a.at_depth(depth), b.at_depth(depth)
    while a is not b:
        up_a, up_b = (a.parent, b.parent) if a.jump is b.jump else (a.jump, b.jump)
        assert up_a is not None
        assert up_b is not None
        a, b = up_a, up_b
    return a
