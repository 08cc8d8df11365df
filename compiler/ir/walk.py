"""The walk over an expression that most analyses are: a loop with a stack of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller

from compiler.ir.expr import Expr


def post_order(
    root: Expr, operands: Callable[[Expr], Sequence[Expr]] = methodcaller("operands")
) -> Iterator[Expr]:
    """Yield every node reachable from ``root`` once, operands before users, in visiting order.

    Args:
        root: where to begin; it is yielded last.
        operands: asked once of every node; () does not enter it.
    """
    done: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, operands_pushed = stack.pop()
        if node in done:
            continue
        if operands_pushed:
            done.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(operands(node)) if arg not in done)
