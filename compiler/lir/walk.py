"""Walks over scalar expressions, with a stack of their own: an epilogue may be 1000 nodes deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any, TypeVar

from compiler.lir import index
from compiler.lir.scalars import INDEX_DTYPE, Axis, Bin, Cast, Intrin, Load, Scalar, Select, Un

T = TypeVar("T")


def post_order(
    *roots: T, operands_of: Callable[[T], tuple[T, ...]] = methodcaller("operands")
) -> Iterator[T]:
    """Every node reachable from the roots once, operands before users.

    Args:
        operands_of: () does not enter a node.
    """
    done: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, operands_pushed = stack.pop()
        if id(node) in done:
            continue
        operands = operands_of(node)
        if operands_pushed or not operands:
            done.add(id(node))
            yield node
        else:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(operands))


def loads(*roots: Scalar) -> Iterator[Load]:
    """Every load in them, each node once."""
    return (node for node in post_order(*roots) if isinstance(node, Load))


def with_operands(node: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """The node over other operands, index arithmetic simplified; itself when they are its own."""
    if all(new is old for new, old in zip(operands, node.operands())):
        return node
    return _REBUILD[type(node)](node, operands)


def _binary(node: Any, operands: Sequence[Scalar]) -> Scalar:
    made = index.binary if node.dtype == INDEX_DTYPE else Bin
    return made(node.op, *operands)


_REBUILD: dict[type[Scalar], Callable[[Any, Sequence[Scalar]], Scalar]] = {
    Bin: _binary,
    Load: lambda node, operands: Load(node.buffer, tuple(operands)),
    Select: lambda node, operands: Select(*operands),
    Cast: lambda node, operands: Cast(node.to, *operands),
    Un: lambda node, operands: Un(node.op, *operands),
    Intrin: lambda node, operands: Intrin(node.name, tuple(operands), node.to),
}


def rewrite(root: Scalar, change: Callable[[Scalar], Scalar | None]) -> Scalar:
    """The expression with leaves and loads replaced.

    Args:
        root: the expression.
        change: what stands for a leaf, or for a load whose indices have been replaced; None keeps
            it.
    """
    done: dict[int, Scalar] = {}
    for node in post_order(root):
        operands = node.operands()
        new = with_operands(node, [done[id(operand)] for operand in operands])
        # An operation may have become one of its operands, which has had its turn.
        if not operands or isinstance(node, Load):
            replaced = change(new)
        else:
            replaced = None
        done[id(node)] = new if replaced is None else replaced
    return done[id(root)]


def with_axes(root: Scalar, axes: Iterable[Scalar], values: Iterable[Scalar]) -> Scalar:
    """The expression with loop variables replaced, all at once."""
    by_name = {axis.name: value for axis, value in zip(axes, values) if isinstance(axis, Axis)}

    def change(node: Scalar) -> Scalar | None:
        if isinstance(node, Axis):
            return by_name.get(node.name)
        return None

    return rewrite(root, change)
