"""The walk over an expression that most analyses are: a loop with a stack of its own.

Nodes never change, so neither does the order below a root. One pass after the other asks for the
order of the same function: the last few that were walked to the end are kept while the root lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import methodcaller
from weakref import ref

from compiler.ir.expr import Expr, Function

_OPERANDS = methodcaller("operands")

_FEWEST, _MOST = 64, 8
"""Nodes of an order that is worth keeping, and how many of them are kept."""

_kept: dict[int, tuple[ref[Expr], tuple[Expr, ...]]] = {}
"""By ``id`` of the root: the root and the nodes below it. No node refers to what is above it, so
the root dies with its last user, and its entry with it."""


def post_order(
    root: Expr, operands: Callable[[Expr], Sequence[Expr]] = _OPERANDS
) -> Iterator[Expr]:
    """Yield every node reachable from ``root`` once, operands before users, in visiting order.

    Args:
        root: where to begin; it is yielded last.
        operands: asked once of every node; () does not enter it.
    """
    if operands is not _OPERANDS:
        return _walk(root, operands)
    if type(root) is Function and type(root.body) is not Function:
        # Parameters have no operands: in front, they change nothing in the order of the others.
        params = dict.fromkeys(root.params)
        inside = (node for node in post_order(root.body) if node not in params)
        return chain(params, inside, (root,))
    known = _kept.get(id(root))
    if known is not None and known[0]() is root:
        return chain(known[1], (root,))
    return _walk_and_keep(root)


def _walk_and_keep(root: Expr) -> Iterator[Expr]:
    below: list[Expr] = []
    keep = below.append
    for node in _walk(root, _OPERANDS):
        if node is not root:
            keep(node)
        yield node
    if len(below) >= _FEWEST:
        key = id(root)
        _kept[key] = (ref(root, lambda _: _kept.pop(key, None)), tuple(below))
        for oldest in list(_kept)[:-_MOST]:
            _kept.pop(oldest, None)


def _walk(root: Expr, operands: Callable[[Expr], Sequence[Expr]]) -> Iterator[Expr]:
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
