"""Unused pure bindings go away, effects stay."""

from __future__ import annotations

from typing import Any

import compiler
from compiler import relay, transform
from compiler.ir.expr import Expr, Let

op = relay.op
x = relay.var("x", (2,))
a, b, c, f = (relay.var(n) for n in "abcf")


def run(body: Expr, inline_once: bool = False) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.DeadCodeElimination(inline_once=inline_once)(mod)


def becomes(body: Expr, expected: Expr, inline_once: bool = False) -> None:
    _, new = run(body, inline_once)
    compiler.assert_structural_equal(new, relay.module(relay.Function((x,), expected)))


def stays(body: Expr, inline_once: bool = False) -> None:
    mod, new = run(body, inline_once)
    assert new["main"] is mod["main"]


def test_unused_bindings_go_and_with_them_what_only_they_used() -> None:
    body = Let(a, op.exp(x), Let(b, op.add(a, a), op.tanh(x)))
    becomes(body, op.tanh(x))


def test_used_bindings_stay() -> None:
    stays(Let(a, op.exp(x), op.add(a, a)))


def test_a_binding_used_in_one_branch_stays() -> None:
    flag = relay.const(True)
    stays(Let(a, op.exp(x), relay.If(flag, a, x)))


def test_values_with_effects_stay() -> None:
    cell = relay.RefCreate(x)
    stays(Let(a, relay.RefWrite(cell, x), op.tanh(x)))
    stays(Let(a, op.nn.dropout(x), op.tanh(x)))
    becomes(Let(a, relay.RefRead(cell), op.tanh(x)), op.tanh(x))


def test_an_unused_function_goes_even_if_calling_it_would_have_an_effect() -> None:
    p = relay.var("p", (2,))
    writer = relay.Function((p,), relay.RefWrite(relay.RefCreate(p), p))
    becomes(Let(f, writer, op.tanh(x)), op.tanh(x))
    stays(Let(f, writer, Let(a, relay.Call(f, (x,)), op.tanh(x))))


def test_calls_of_known_pure_functions_go() -> None:
    p = relay.var("p", (2,))
    pure = relay.Function((p,), op.exp(p))
    becomes(Let(f, pure, Let(a, relay.Call(f, (x,)), op.tanh(x))), op.tanh(x))


def test_calls_of_recursive_functions_stay() -> None:
    p = relay.var("p", (2,))
    ty = relay.FuncType((relay.TensorType((2,)),), relay.TensorType((2,)))
    g = relay.var("g", ty)
    loop = relay.Function((p,), relay.Call(g, (p,)), relay.TensorType((2,)))
    stays(Let(g, loop, Let(a, relay.Call(g, (x,)), op.tanh(x))))
    becomes(Let(g, loop, op.tanh(x)), op.tanh(x))


def test_inline_once_replaces_a_variable_read_once() -> None:
    body = Let(a, op.exp(x), Let(b, op.tanh(a), op.add(b, b)))
    becomes(body, Let(b, op.tanh(op.exp(x)), op.add(b, b)), inline_once=True)
    stays(body)


def test_inline_once_does_not_move_work_into_a_function_or_past_a_write() -> None:
    p, cell = relay.var("p", (2,)), relay.var("cell")
    stays(Let(a, op.exp(x), relay.Call(relay.Function((p,), op.add(p, a)), (x,))), inline_once=True)
    reads = Let(a, relay.RefRead(cell), Let(b, relay.RefWrite(cell, x), op.add(a, x)))
    body = Let(cell, relay.RefCreate(x), reads)
    stays(body, inline_once=True)


def test_a_chain_of_20000_lets_is_emptied() -> None:
    body: Expr = op.tanh(x)
    exp = op.exp(x)
    for _ in range(20_000):
        body = Let(relay.var("v"), exp, body)
    becomes(body, op.tanh(x))


def test_a_chain_of_20000_lets_read_once_is_inlined() -> None:
    variables = [relay.var("v", (2,)) for _ in range(20_000)]
    body: Expr = op.tanh(variables[-1])
    for before, v in reversed(list(zip([x, *variables], variables))):
        body = Let(v, op.exp(before), body)
    _, new = run(body, inline_once=True)
    assert not isinstance(new["main"].body, Let)
