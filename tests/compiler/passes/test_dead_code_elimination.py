"""Long chains of bindings; what goes and what stays is text in golden/passes."""

from __future__ import annotations

from typing import Any

import compiler
from compiler import relay, transform
from compiler.ir.expr import Expr, Let

op = relay.op
x = relay.var("x", (2,))


def run(body: Expr, inline_once: bool = False) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.DeadCodeElimination(inline_once=inline_once)(mod)


def becomes(body: Expr, expected: Expr, inline_once: bool = False) -> None:
    _, new = run(body, inline_once)
    compiler.assert_structural_equal(new, relay.module(relay.Function((x,), expected)))


def test_a_chain_of_5000_lets_is_emptied() -> None:
    body: Expr = op.tanh(x)
    exp = op.exp(x)
    for _ in range(5_000):
        body = Let(relay.var("v"), exp, body)
    becomes(body, op.tanh(x))


def test_a_chain_of_5000_lets_read_once_is_inlined() -> None:
    variables = [relay.var("v", (2,)) for _ in range(5_000)]
    body: Expr = op.tanh(variables[-1])
    for before, v in reversed(list(zip([x, *variables], variables))):
        body = Let(v, op.exp(before), body)
    _, new = run(body, inline_once=True)
    assert not isinstance(new["main"].body, Let)
