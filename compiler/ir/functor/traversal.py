"""ExpandDataflow and ExpandANormalForm: the explicit stacks that the mixed-mode classes share.

Source: Relay v0.10 ir/expr_functor.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.ir.expr import Call, Expr, Let, Tuple, TupleGetItem
from compiler.ir.walk import is_lowered_call


def dataflow_children(expr: Expr) -> Sequence[Expr]:
    """Children in the order they are pushed: the last one is processed first.

    Call: arguments reversed, then the callee; ``call_lowered``: the fields of its argument tuple
    reversed, then the callee. Tuple: fields reversed. TupleGetItem: its tuple. Other kinds: none.
    """
    kind = type(expr)
    if kind is Call:
        assert isinstance(expr, Call)
        args = expr.args
        if len(args) == 2 and is_lowered_call(expr):
            return (*args[1].operands()[::-1], args[0])
        return (*args[::-1], expr.op)
    if kind is Tuple:
        assert isinstance(expr, Tuple)
        return expr.fields[::-1]
    if kind is TupleGetItem:
        return expr.operands()
    return ()


def expand_dataflow(
    expr: Expr,
    check_visited: Callable[[Expr], bool],
    visit_leaf: Callable[[Expr], None],
    expand_expr: Callable[[Expr], Sequence[Expr]] = dataflow_children,
) -> None:
    """Leave the nodes reachable from ``expr`` in post-order, without recursion.

    Args:
        expr: the root.
        check_visited: asked before a node is pushed and again when it is on top; may count.
        visit_leaf: called when all children of a node have been left.
        expand_expr: children in push order; default ``dataflow_children``.
    """
    if check_visited(expr):
        return
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        node, expanded = stack[-1]
        if check_visited(node):
            stack.pop()
        elif expanded:
            visit_leaf(node)
            stack.pop()
        else:
            stack[-1] = (node, True)
            depth = len(stack)
            for child in expand_expr(node):
                if not check_visited(child):
                    stack.append((child, False))
            # Most nodes are leaves or read what was visited before: no second look at them.
            if len(stack) == depth:
                visit_leaf(node)
                stack.pop()


def expand_anf(
    let: Let,
    pre: Callable[[Let], None],
    post: Callable[[Let], None],
    stop: Callable[[Let], bool] | None = None,
) -> None:
    """Walk a chain of Lets down with ``pre``, then back up from the innermost with ``post``.

    Args:
        let: head of the chain.
        pre: handles variable and value.
        post: handles the body of the innermost Let, rebuilds or counts the others.
        stop: asked about every inner Let; True ends the chain in front of it.
    """
    chain: list[Let] = []
    node: Expr = let
    while isinstance(node, Let) and not (chain and stop is not None and stop(node)):
        pre(node)
        chain.append(node)
        node = node.body
    for inner in reversed(chain):
        post(inner)
