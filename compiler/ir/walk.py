"""The walk over an expression that most analyses are: a loop with a stack of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import chain
from operator import methodcaller

from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    is_op_call,
)

_OPERANDS = methodcaller("operands")
_DATAFLOW = frozenset((Call, Constant, GlobalVar, Op, Tuple, TupleGetItem, Var))


def nodes_of(function: Function) -> tuple[Expr, ...]:
    """``post_order`` of the body of a function.

    One pass after the other asks for it and nodes never change, so the function keeps it. No node
    of the body refers to the function, so the order is freed with it.
    """
    if function.nodes is None:
        ordered(function, _walk(function.body, _OPERANDS))
    assert function.nodes is not None
    return function.nodes


def ordered(function: Function, order: Iterable[Expr]) -> Function:
    """``function``, which keeps this ``post_order`` of its body."""
    nodes = tuple(order)
    operators = frozenset([node for node in nodes if type(node) is Op])
    object.__setattr__(function, "operators", operators)
    object.__setattr__(function, "is_dataflow", _DATAFLOW.issuperset(map(type, nodes)))
    object.__setattr__(function, "nodes", nodes)
    return function


def operators_of(function: Function) -> frozenset[Op]:
    """The operators that a function mentions, in the functions inside it as well.

    They are kept with the order: a pass looks for operators that are not there without reading a
    node, and the nodes of a large graph are in no cache.
    """
    nodes_of(function)
    return function.operators


def mentions(function: Function, names: Container[str]) -> bool:
    """Return whether a function, or one inside it, mentions an operator of these names."""
    return any(op.name in names for op in operators_of(function))


def post_order(
    root: Expr, operands: Callable[[Expr], Sequence[Expr]] = _OPERANDS
) -> Iterator[Expr]:
    """Yield every node reachable from ``root`` once, operands before users, in visiting order.

    Args:
        root: where to begin; it is yielded last.
        operands: asked once of every node; () does not enter it.
    """
    if operands is _OPERANDS and type(root) is Function:
        # Parameters have no operands: in front, they change nothing in the order of the others.
        params = dict.fromkeys(root.params)
        inside = (node for node in nodes_of(root) if node not in params)
        return chain(params, inside, (root,))
    return _walk(root, operands)


def _walk(root: Expr, operands: Callable[[Expr], Sequence[Expr]]) -> Iterator[Expr]:
    done: set[Expr] = set()
    stack: list[Expr | None] = [root]  # None: all operands of the node below it are done
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
        elif node in done:
            continue
        elif type(node) is Call and operands is _OPERANDS:
            stack += (node, None, *node.args[::-1], node.op)
            continue
        elif below := operands(node):
            stack += (node, None, *below[::-1])
            continue
        done.add(node)
        yield node


def function_of(params: Sequence[Var], body: Expr) -> Function:
    """The function of those of ``params`` that ``body`` reads."""
    whole = Function(tuple(params), body)
    read = set(nodes_of(whole))
    return whole.with_fields(params=tuple(param for param in params if param in read))


def behind(value: Expr, names: Collection[str]) -> tuple[list[Call], Expr]:
    """(calls of operators of these names, outermost first; what their first operands lead to)."""
    calls: list[Call] = []
    while isinstance(value, Call) and is_op_call(value, *names):
        calls.append(value)
        value = value.args[0]
    return calls, value


def with_calls(value: Expr, calls: Sequence[Call]) -> Expr:
    """``value`` in place of what the calls of ``behind`` lead to."""
    for call in reversed(calls):
        value = call.with_fields(args=(value, *call.args[1:]))
    return value


def is_lowered_call(node: Expr) -> bool:
    """True for ``call_lowered(@f, (…))``, whose argument tuple belongs to the call."""
    return (
        type(node) is Call
        and type(node.op) is Op
        and node.op.name == "call_lowered"
        and len(node.args) == 2
        and isinstance(node.args[1], Tuple)
    )
