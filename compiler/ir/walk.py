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
    entered: list[Expr] = []
    stack: list[Expr | None] = [root]  # None: all operands of the node entered last are done
    while stack:
        node = stack.pop()
        if node is None:
            node = entered.pop()
        elif node in done:
            continue
        elif below := operands(node):
            entered.append(node)
            stack.append(None)
            stack += below[::-1]
            continue
        done.add(node)
        yield node
