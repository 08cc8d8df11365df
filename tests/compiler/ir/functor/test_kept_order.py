"""A mutator follows the order that a function keeps: the same calls of hooks, the same result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compiler import relay, structural_equal
from compiler.ir.expr import Call, Expr, Function, If, Tuple, TupleGetItem
from compiler.ir.functor import MixedModeMutator
from compiler.ir.rebuild import rebuilt_function
from compiler.ir.walk import nodes_of

x, y = relay.var("x", (2,)), relay.var("y", (2,))
op = relay.op


class Recorder(MixedModeMutator):
    """exp becomes tanh; every call is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[Call] = []

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        self.met.append(pre)
        return op.tanh(*post.args) if pre.op is op.exp(x).op else post


def diamond() -> Expr:
    shared = op.exp(op.add(x, y))
    pair = Tuple((op.add(shared, shared), op.exp(shared)))
    return op.add(TupleGetItem(pair, 1), op.add(TupleGetItem(pair, 0), x))


def with_function() -> Expr:
    z = relay.var("z", (2,))
    inner = Function((z,), op.exp(op.add(z, x)))
    return op.add(Call(inner, (op.exp(x),)), y)


def with_branch() -> Expr:
    condition = relay.const(True)
    return op.exp(If(condition, op.exp(x), op.add(x, y)))


@pytest.mark.parametrize("make", [diamond, with_function, with_branch])
def test_a_kept_order_changes_neither_hooks_nor_result(make: object) -> None:
    assert callable(make)
    body = make()
    plain, kept = Function((x, y), body), Function((x, y), body)
    nodes_of(kept)
    first, second = Recorder(), Recorder()
    assert structural_equal(first.mutate(plain), second.mutate(kept))
    assert first.met == second.met


def test_a_function_that_stays_is_the_same_object() -> None:
    fn = Function((x, y), op.add(op.tanh(x), y))
    nodes_of(fn)
    assert Recorder().mutate(fn) is fn


def shared_leaf() -> Expr:
    return op.multiply(op.add(x, ONE), op.add(ONE, y))


ONE, TWO = relay.const(1.0), relay.const(2.0)


@pytest.mark.parametrize("make", [diamond, with_function, with_branch, shared_leaf])
@pytest.mark.parametrize(
    "change",
    [
        {x: y},
        {x: op.exp(y)},
        {ONE: TWO},
        {op.exp(x).op: op.tanh(x).op},
        {x: TWO, y: ONE},
    ],
)
def test_a_rebuilt_function_has_the_order_of_a_walk(
    make: Callable[[], Expr], change: dict[Expr, Expr]
) -> None:
    function = Function((x, y), make())
    new = rebuilt_function(function, lambda node, _: change.get(node))
    assert nodes_of(new) == nodes_of(Function(new.params, new.body))


def test_a_leaf_that_only_one_of_its_readers_changes_is_walked_anew() -> None:
    function = Function((x, y), shared_leaf())
    (first, _) = (
        node for node in nodes_of(function) if isinstance(node, Call) and ONE in node.args
    )
    new = rebuilt_function(function, lambda node, _: op.add(x, TWO) if node is first else None)
    assert nodes_of(new) == nodes_of(Function(new.params, new.body))
    assert {ONE, TWO} <= set(nodes_of(new))


def test_the_order_of_a_function_with_other_leaves_needs_no_walk() -> None:
    function = Function((x, y), shared_leaf())
    new = rebuilt_function(function, lambda node, _: TWO if node is ONE else None)
    assert new.nodes is not None
    assert TWO in new.nodes
    assert ONE not in new.nodes
