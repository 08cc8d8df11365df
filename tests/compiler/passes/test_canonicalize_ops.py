"""The level of the pass; what it does is text in golden/passes."""

from __future__ import annotations

from compiler import relay, transform

op = relay.op


def test_in_a_sequence_it_runs_at_level_3_only() -> None:
    x, b = relay.var("x", (2, 4)), relay.var("b", (4,))
    mod = relay.module(relay.Function((x, b), op.nn.bias_add(x, b)))
    pipeline = transform.Sequential([transform.CanonicalizeOps()])
    assert pipeline(mod)["main"] is mod["main"]
    with transform.PassContext(opt_level=3):
        assert pipeline(mod)["main"] is not mod["main"]
