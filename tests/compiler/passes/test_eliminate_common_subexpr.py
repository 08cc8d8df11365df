"""The callback and long chains; which calls are equal is text in golden/passes."""

from __future__ import annotations

from typing import Any

from compiler import relay, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call
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


def test_two_chains_of_50000_equal_calls_become_one() -> None:
    add = op.add(x, x).op

    def chain() -> Expr:
        z: Expr = x
        for _ in range(50_000):
            z = Call(add, (z, x))
        return z

    _, new = run(op.multiply(chain(), chain()))
    assert number_of_calls(new) == 50_001


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
