"""One widening cast per elementwise consumer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler import relay, transform
from compiler.ir.analysis import extract_calls
from compiler.ir.expr import Call, Expr, Op, is_op_call
from compiler.ir.functor import ExprMutator
from compiler.ir.op import OpPattern
from compiler.ir.ty import bits

op = relay.op
x = relay.var("x", (4,), "int8")


def run(body: Expr) -> tuple[Any, Any]:
    mod = relay.module(relay.Function((x,), body))
    return mod, transform.CanonicalizeCast()(mod)


def casts(mod: Any) -> list[Call]:
    return extract_calls(mod["main"], "cast")


def ones(dtype: str = "int32") -> relay.Constant:
    return relay.const([1, 1, 1, 1], dtype)


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


def test_a_chain_of_10000_consumers_of_one_cast_is_split() -> None:
    c = op.cast(x, dtype="int32")
    add = relay.op.add(c, c).op
    y: Expr = c
    for _ in range(10_000):
        y = Call(add, (y, c))
    _, new = run(y)
    assert len(casts(new)) == 10_001


class RecursiveRule(ExprMutator):
    """The rule as the specification words it, recursive; small graphs only."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: Counter[Expr] = Counter()

    def visit_call(self, call: Call, *args: Any) -> Expr:
        op = call.op
        if not isinstance(op, Op) or op.pattern is None or op.pattern > OpPattern.BROADCAST:
            return super().visit_call(call)
        new_args = []
        for old in call.args:
            new = self.visit(old)
            if is_op_call(old, "cast"):
                assert isinstance(old, Call)
                if bits(old.args[0].tensor_type.dtype) < bits(old.tensor_type.dtype):
                    self.uses[old] += 1
                    if self.uses[old] > 1:
                        assert isinstance(new, Call)
                        new = Call(new.op, new.args, new.attrs, span=new.span)
            new_args.append(new)
        return call.with_fields(args=tuple(new_args))


@st.composite
def cast_graphs(draw: Any) -> Expr:
    """Sums, products and reductions over values of three dtypes, joined by casts."""
    pools: dict[str, list[Expr]] = {"int8": [x], "int16": [], "int32": []}
    for _ in range(draw(st.integers(1, 14))):
        sources = [v for pool in pools.values() for v in pool]
        dtype = draw(st.sampled_from(sorted(pools)))
        if not pools[dtype] or draw(st.booleans()):
            source = draw(st.sampled_from(sources))
            pools[dtype].append(relay.op.cast(source, dtype=dtype))
            continue
        left, right = (draw(st.sampled_from(pools[dtype])) for _ in range(2))
        kind = draw(st.integers(0, 2))
        value = op.add(left, right) if kind else op.sum(left, axis=[0], keepdims=True)
        if kind == 0:
            value = op.add(value, right)
        pools[dtype].append(value)
    return relay.Tuple(tuple(pool[-1] for pool in pools.values() if pool))


@settings(max_examples=150, deadline=None)
@given(body=cast_graphs())
def test_the_result_is_that_of_the_recursive_rule(body: Expr) -> None:
    mod, new = run(body)
    expected = RecursiveRule().visit(mod["main"])
    compiler.assert_structural_equal(new["main"], expected)
