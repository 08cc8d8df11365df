"""bias_add becomes add: spec/quantize.md section 2.6, case C5 (graph part)."""

from __future__ import annotations

from typing import Any

import pytest

import compiler
from compiler import relay, transform

op = relay.op


def canonical(expr: relay.Expr) -> Any:
    return transform.CanonicalizeOps()(relay.module(expr))


@pytest.mark.parametrize(
    ("shape", "axis", "newaxes"),
    [((1, 4, 8, 8), 1, 2), ((1, 4, 8, 8), -3, 2), ((4, 2), 0, 1), ((2, 4), -1, 0), ((2, 4), 1, 0)],
)
def test_the_bias_is_expanded_to_its_axis(shape: tuple[int, ...], axis: int, newaxes: int) -> None:
    x, b = relay.var("x", shape), relay.var("b", (4,))
    bias = op.expand_dims(b, axis=1, num_newaxis=newaxes) if newaxes else b
    new = canonical(relay.Function((x, b), op.nn.bias_add(x, b, axis=axis)))
    compiler.assert_structural_equal(new, relay.module(relay.Function((x, b), op.add(x, bias))))


def test_other_operators_stay_the_very_function() -> None:
    x = relay.var("x", (2, 4))
    mod = relay.module(relay.Function((x,), op.nn.relu(op.add(x, x))))
    assert transform.CanonicalizeOps()(mod)["main"] is mod["main"]


def test_in_a_sequence_it_runs_at_level_3_only() -> None:
    x, b = relay.var("x", (2, 4)), relay.var("b", (4,))
    mod = relay.module(relay.Function((x, b), op.nn.bias_add(x, b)))
    pipeline = transform.Sequential([transform.CanonicalizeOps()])
    assert pipeline(mod)["main"] is mod["main"]
    with transform.PassContext(opt_level=3):
        assert pipeline(mod)["main"] is not mod["main"]
