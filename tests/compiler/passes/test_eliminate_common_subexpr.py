"""The callback and long chains; which calls are equal is text in golden/passes."""

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
