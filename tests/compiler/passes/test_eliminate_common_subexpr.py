"""The callback and long chains; which calls are equal is text in golden/passes."""

from __future__ import annotations

from typing import Any

from compiler import relay, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, TupleGetItem, is_op_call
from compiler.ir.virtual_device import VirtualDevice

op = relay.op
x = relay.var("x", (4, 6))


def run(body: Expr, **options: Any) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.EliminateCommonSubexpr(**options)(mod)


def number_of_calls(mod: Any) -> int:
    return sum(isinstance(n, Call) for n in post_order(mod["main"]))


def test_a_callback_keeps_calls_apart() -> None:
    body = op.multiply(op.add(op.exp(x), op.exp(x)), op.add(op.exp(x), op.exp(x)))
    _, new = run(body, fskip=lambda call: is_op_call(call, "exp"))
    assert number_of_calls(new) == 7
    _, new = run(body)
    assert number_of_calls(new) == 3


def test_calls_that_share_their_first_operand_only_stay_apart() -> None:
    y, z = op.exp(x), op.sqrt(x)
    body = op.add(op.multiply(op.add(x, y), op.add(x, z)), op.subtract(x, y))
    mod, new = run(body)
    assert new["main"] is mod["main"]


def test_equal_calls_among_many_on_one_operand_become_one() -> None:
    y, z = op.exp(x), op.sqrt(x)
    body = op.multiply(op.multiply(op.add(x, y), op.add(x, z)), op.add(x, z))
    mod, new = run(body)
    assert number_of_calls(new) == number_of_calls(mod) - 1
    assert new["main"].body.args[0].args[1] is new["main"].body.args[1]


def test_equal_items_of_a_tuple_become_one() -> None:
    parts = op.split(x, indices_or_sections=2, axis=1)
    body = op.add(TupleGetItem(parts, 1), op.add(TupleGetItem(parts, 0), TupleGetItem(parts, 1)))
    _, new = run(body)
    assert new["main"].body.args[0] is new["main"].body.args[1].args[1]
    assert new["main"].body.args[0] is not new["main"].body.args[1].args[0]


def test_two_chains_of_10000_equal_calls_become_one() -> None:
    add = op.add(x, x).op

    def chain() -> Expr:
        z: Expr = x
        for _ in range(10_000):
            z = Call(add, (z, x))
        return z

    _, new = run(op.multiply(chain(), chain()))
    assert number_of_calls(new) == 10_001


def test_calls_with_other_attributes_on_the_same_arguments_stay_apart() -> None:
    rows, columns = op.nn.softmax(x, axis=0), op.nn.softmax(x, axis=1)
    again = op.nn.softmax(x, axis=1), op.nn.softmax(x, axis=0)
    body = op.add(op.subtract(rows, columns), op.subtract(*again))
    _, new = run(body)
    difference, negative = new["main"].body.args
    assert difference.args == negative.args[::-1]
    assert [call.attrs.axis for call in difference.args] == [0, 1]
    assert number_of_calls(new) == 5


def test_calls_on_other_devices_stay_apart() -> None:
    here, there = VirtualDevice("c"), VirtualDevice("opu")
    calls = [Call(op.exp(x).op, (x,), virtual_device=device) for device in (here, there, there)]
    _, new = run(op.add(op.add(calls[0], calls[1]), calls[2]))
    assert number_of_calls(new) == 4
    assert new["main"].body.args[0].args[1] is new["main"].body.args[1]
