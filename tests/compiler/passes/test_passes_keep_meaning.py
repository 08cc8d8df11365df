"""Random networks give the same values before and after every pass and every pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler import relay, transform
from compiler.ir.expr import Expr, Function

op = relay.op
CHANNELS, SHAPE = 4, (2, 4, 5, 5)

PIPELINES = [
    "SimplifyInference",
    "FoldConstant",
    "BackwardFoldScaleAxis",
    "ForwardFoldScaleAxis",
    "CanonicalizeOps",
    "CanonicalizeCast",
    "CancelTransposes",
    "HoistEpilogues",
    "SimplifyExpr",
    "EliminateCommonSubexpr",
    "DeadCodeElimination",
    "DeadCodeElimination{inline_once=True}",
    "SimplifyInference,FoldConstant,FoldScaleAxis,CanonicalizeOps,FoldConstant",
    "SimplifyExpr,SimplifyInference,FoldConstant,FoldScaleAxis,EliminateCommonSubexpr,"
    "DeadCodeElimination{inline_once=True},SimplifyExpr,FoldConstant",
]


class NetBuilder:
    """Draws operators over a pool of values of one shape; some are bound by lets."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.x = relay.var("x", SHAPE)
        self.pool: list[Expr] = [self.x]
        self.lets: list[tuple[Any, Expr]] = []

    def pick(self) -> Expr:
        # Mostly the newest value, so that chains form; sometimes an old one, so that it is shared.
        last = len(self.pool) - 1
        return self.pool[max(last - self.draw(st.sampled_from([0, 0, 0, 1, 3])), 0)]

    def vector(self, *shape: int, signed: bool = True) -> relay.Constant:
        values = self.rng.uniform(0.5, 1.5, shape)
        if signed and self.draw(st.booleans()):
            values *= self.rng.choice([-1.0, 1.0], shape)
        return relay.const(values.astype(np.float32))

    def step(self) -> None:
        kind = self.draw(st.sampled_from(sorted(STEPS)))
        value = STEPS[kind](self, self.pick())
        if self.draw(st.integers(0, 7)) == 0:
            var = relay.var("v", SHAPE)
            self.lets.append((var, value))
            value = var
        self.pool.append(value)

    def function(self) -> Function:
        body = op.add(self.pool[-1], self.pick())
        for var, value in reversed(self.lets):
            body = relay.Let(var, value, body)
        return relay.Function((self.x,), body)


def batch_norm(net: NetBuilder, y: Expr) -> Expr:
    statistics = [net.vector(CHANNELS) for _ in range(3)]
    bn = op.nn.batch_norm(y, *statistics, net.vector(CHANNELS, signed=False))
    return relay.TupleGetItem(bn, 0)


def convolution(net: NetBuilder, y: Expr) -> Expr:
    depthwise = net.draw(st.booleans())
    weight = relay.const(
        (net.rng.standard_normal((CHANNELS, 1 if depthwise else CHANNELS, 3, 3)) / 4).astype("f")
    )
    groups = CHANNELS if depthwise else 1
    if net.draw(st.booleans()):
        return op.nn.conv2d(y, weight, padding=1, groups=groups)
    ring = op.nn.pad(y, relay.const(0.0), pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))
    return op.nn.conv2d(ring, weight, groups=groups)


STEPS: dict[str, Any] = {
    "relu": lambda net, y: op.nn.relu(y),
    "leaky_relu": lambda net, y: op.nn.leaky_relu(y, alpha=0.1),
    "tanh": lambda net, y: op.tanh(y),
    "clip": lambda net, y: op.clip(y, -1.0, 2.0),
    "convolution": convolution,
    "convolution again": convolution,
    "scale": lambda net, y: op.multiply(y, net.vector(CHANNELS, 1, 1)),
    "scale on the left": lambda net, y: op.multiply(net.vector(1, CHANNELS, 1, 1), y),
    "positive scale": lambda net, y: op.multiply(y, net.vector(CHANNELS, 1, 1, signed=False)),
    "other axis": lambda net, y: op.multiply(y, net.vector(1, 5)),
    "bias": lambda net, y: op.add(y, net.vector(CHANNELS, 1, 1)),
    "bias on the left": lambda net, y: op.subtract(net.vector(CHANNELS, 1, 1), y),
    "bias_add": lambda net, y: op.nn.bias_add(y, net.vector(CHANNELS), axis=1),
    "divide": lambda net, y: op.divide(y, net.vector(CHANNELS, 1, 1)),
    "neutral": lambda net, y: op.add(op.multiply(y, relay.const(1.0)), relay.const(0.0)),
    "sum": lambda net, y: op.add(y, net.pick()),
    "product": lambda net, y: op.multiply(op.tanh(y), op.tanh(net.pick())),
    "batch_norm": batch_norm,
    "dropout": lambda net, y: op.nn.dropout(y),
    "layer_norm": lambda net, y: op.nn.layer_norm(y, net.vector(5), net.vector(5)),
    "transposes": lambda net, y: op.transpose(
        op.transpose(y, axes=[0, 2, 3, 1]), axes=[0, 3, 1, 2]
    ),
    "to the last": lambda net, y: op.transpose(
        op.tanh(op.add(op.transpose(y, axes=[0, 2, 3, 1]), net.vector(CHANNELS))),
        axes=[0, 3, 1, 2],
    ),
    "reshapes": lambda net, y: op.reshape(op.reshape(y, newshape=[2, -1]), newshape=SHAPE),
    "halves": lambda net, y: op.concatenate(
        [relay.TupleGetItem(op.split(y, 2, axis=1), i) for i in (1, 0)], axis=1
    ),
    "casts": lambda net, y: op.cast(op.cast(y, dtype="float64"), dtype="float32"),
    "constant branch": lambda net, y: relay.If(relay.const(True), op.nn.relu(y), op.tanh(y)),
}


@st.composite
def networks(draw: Any) -> Function:
    """A function of x, all of whose values have one shape."""
    net = NetBuilder(draw)
    for _ in range(draw(st.integers(1, 12))):
        net.step()
    return net.function()


@pytest.mark.parametrize("pipeline", PIPELINES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(main=networks(), seed=st.integers(0, 100))
def test_values_and_types_stay(pipeline: str, main: Function, seed: int) -> None:
    mod = relay.module(main)
    with transform.PassContext(opt_level=4, verify=True):
        new = transform.Sequential.from_text(pipeline)(mod)
    assert new["main"].checked_type == mod["main"].checked_type
    data = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    (want,), (got,) = compiler.evaluate(mod, [data]), compiler.evaluate(new, [data])
    # Folded weights and reciprocals round differently; errors are relative to the largest value.
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-4 * float(1 + np.abs(want).max()))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(main=networks())
def test_a_second_run_of_the_prerequisite_passes_finds_nothing(main: Function) -> None:
    pipeline = transform.Sequential.from_text("SimplifyInference,CanonicalizeOps,FoldConstant")
    with transform.PassContext(opt_level=3):
        once = pipeline(relay.module(main))
        assert pipeline(once)["main"] is once["main"]
