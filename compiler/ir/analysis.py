"""Small analyses; every walk keeps a stack of its own and visits each node once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from compiler.ir.expr import Expr, Function, Let, Var


def post_order(root: Expr) -> Iterator[Expr]:
    """Yield every node reachable from ``root`` once, operands before users, in visiting order."""
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
            stack.extend((arg, False) for arg in reversed(node.operands()) if arg not in done)


def post_order_visit(root: Expr, visit: Callable[[Expr], None]) -> None:
    """Call ``visit`` on every node once, operands first."""
    for node in post_order(root):
        visit(node)


def count_uses(root: Expr) -> Counter[Expr]:
    """Number of parent edges per node; an argument used twice by one call counts 2."""
    uses: Counter[Expr] = Counter()
    for node in post_order(root):
        uses.update(node.operands())
    return uses
