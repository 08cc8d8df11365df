"""Equal calls on the same arguments become one object."""

from __future__ import annotations

from typing import Any

from compiler import relay, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call

op = relay.op
x = relay.var("x", (4, 6))


def run(body: Expr, **options: Any) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.EliminateCommonSubexpr(**options)(mod)


def number_of_calls(mod: Any) -> int:
    return sum(isinstance(n, Call) for n in post_order(mod["main"]))


def test_equal_calls_become_one() -> None:
    _, new = run(op.multiply(op.exp(op.tanh(x)), op.exp(op.tanh(x))))
    left, right = new["main"].body.args
    assert left is right
    assert number_of_calls(new) == 3


def test_equal_scalar_constants_count_as_the_same_argument() -> None:
    _, new = run(op.multiply(op.add(x, relay.const(1.0)), op.add(x, relay.const(1.0))))
    assert number_of_calls(new) == 2
    mod, new = run(op.multiply(op.add(x, relay.const(1.0)), op.add(x, relay.const(2.0))))
    assert new["main"] is mod["main"]
    mod, new = run(op.multiply(op.add(x, relay.const(0.0)), op.add(x, relay.const(-0.0))))
    assert new["main"] is mod["main"]


def test_attributes_and_order_of_arguments_matter() -> None:
    y = op.exp(x)
    mod, new = run(op.add(op.sum(x, axis=[0], keepdims=True), op.sum(x, axis=[1], keepdims=True)))
    assert new["main"] is mod["main"]
    mod, new = run(op.add(op.subtract(x, y), op.subtract(y, x)))
    assert new["main"] is mod["main"]


def test_items_of_merged_calls_are_merged() -> None:
    def first() -> Expr:
        return relay.TupleGetItem(op.split(x, indices_or_sections=2, axis=0), 0)

    _, new = run(op.add(op.exp(first()), op.exp(first())))
    assert number_of_calls(new) == 3


def test_stateful_calls_are_not_merged() -> None:
    def dropped() -> Expr:
        return relay.TupleGetItem(op.nn.dropout(x), 0)

    mod, new = run(op.add(dropped(), dropped()))
    assert new["main"] is mod["main"]


def test_a_callback_keeps_calls_apart() -> None:
    body = op.multiply(op.add(op.exp(x), op.exp(x)), op.add(op.exp(x), op.exp(x)))
    _, new = run(body, fskip=lambda call: is_op_call(call, "exp"))
    assert number_of_calls(new) == 7
    _, new = run(body)
    assert number_of_calls(new) == 3


def test_primitive_functions_are_left_alone() -> None:
    p = relay.var("p", (4, 6))
    primitive = relay.Function((p,), op.add(op.exp(p), op.exp(p))).with_attr("Primitive", 1)
    mod, new = run(relay.Call(primitive, (x,)))
    assert new["main"] is mod["main"]


def test_two_chains_of_50000_equal_calls_become_one() -> None:
    add = op.add(x, x).op

    def chain() -> Expr:
        z: Expr = x
        for _ in range(50_000):
            z = Call(add, (z, x))
        return z

    _, new = run(op.multiply(chain(), chain()))
    assert number_of_calls(new) == 50_001
