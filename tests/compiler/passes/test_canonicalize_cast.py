"""One widening cast per elementwise consumer: spec/compiler.md section 2.8, case C-14."""

from __future__ import annotations

from typing import Any

import pytest

import compiler
from compiler import relay, transform
from compiler.ir.analysis import extract_calls
from compiler.ir.expr import Call, Expr

op = relay.op
x = relay.var("x", (4,), "int8")


def run(body: Expr) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.CanonicalizeCast()(mod)


def casts(mod: Any) -> list[Call]:
    return extract_calls(mod["main"], "cast")


def ones(dtype: str = "int32") -> relay.Constant:
    return relay.const([1, 1, 1, 1], dtype)


C14 = """#[version = "0.0.5"]
def @main(%data: Tensor[(1, 16, 7, 7), int8], %w: Tensor[(16, 16, 3, 3), int8],
          %b1: Tensor[(16, 1, 1), int32], %b2: Tensor[(16, 1, 1), int32]) {
  %0 = nn.conv2d(%data, %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3],
                 out_dtype="int8");
  %1 = cast(%0, dtype="int32");
  %2 = add(%1, %b1);
  %3 = add(%1, %b2);
  add(%2, %3)
}
"""


def test_c14_two_consumers_get_a_cast_each_of_one_convolution() -> None:
    mod = transform.CanonicalizeCast()(compiler.parse(C14))
    first, second = casts(mod)
    assert first is not second
    assert first.args[0] is second.args[0]
    assert len(extract_calls(mod["main"], "nn.conv2d")) == 1
    left, right = mod["main"].body.args
    assert (left.args[0], right.args[0]) == (first, second)


def test_no_shared_widening_cast_returns_the_very_function() -> None:
    mod, new = run(op.add(op.cast(x, dtype="int32"), ones()))
    assert new["main"] is mod["main"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_casts_to_the_same_or_a_smaller_width_stay_shared(dtype: str) -> None:
    c = op.cast(x, dtype=dtype)
    mod, new = run(op.add(op.cast(c, dtype="int32"), op.cast(c, dtype="int32")))
    # The two outer casts are separate already; the inner one is not widening.
    assert new["main"] is mod["main"]


def test_an_argument_used_twice_by_one_call_is_duplicated() -> None:
    c = op.cast(x, dtype="int32")
    _, new = run(op.add(c, c))
    left, right = new["main"].body.args
    assert left is not right
    assert left.args[0] is right.args[0]


def test_consumers_that_are_not_broadcast_like_share_and_do_not_count() -> None:
    c = op.cast(x, dtype="int32")
    _, new = run(relay.Tuple((op.sum(c, axis=[0]), op.sum(c, axis=[0]), op.add(c, ones()))))
    assert len(casts(new)) == 1


def test_the_consumer_met_first_by_a_recursive_walk_keeps_the_old_cast() -> None:
    # The outer add counts its first argument before the walk goes down into its second one, so
    # the cast it shares with the reduction is the old one, and the inner add gets the copy.
    c = op.cast(x, dtype="int32")
    inner = op.add(c, ones())
    outer = op.add(c, inner)
    _, new = run(relay.Tuple((op.sum(c, axis=[0]), outer)))
    total, result = new["main"].body.fields
    assert result.args[0] is total.args[0]
    assert result.args[1].args[0] is not total.args[0]


def test_the_number_of_casts_is_the_number_of_eligible_uses() -> None:
    c = op.cast(x, dtype="int32")
    y: Expr = op.add(c, ones())
    for _ in range(5):
        y = op.multiply(y, c)
    _, new = run(y)
    assert len(casts(new)) == 6


def test_a_chain_of_100000_consumers_of_one_cast_is_split() -> None:
    c = op.cast(x, dtype="int32")
    add = relay.op.add(c, c).op
    y: Expr = c
    for _ in range(100_000):
        y = Call(add, (y, c))
    _, new = run(y)
    assert len(casts(new)) == 100_001
