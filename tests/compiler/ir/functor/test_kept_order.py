"""A mutator follows the order that a function keeps: the same calls of hooks, the same result."""

from __future__ import annotations

import pytest

from compiler import relay, structural_equal
from compiler.ir.expr import Call, Expr, Function, If, Tuple, TupleGetItem
from compiler.ir.functor import MixedModeMutator
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
