"""Graphs of any depth are fused, lowered and run without recursion."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.ir.pass_infra import PassContext
from compiler.testing import kernels
from compiler.transform import FuseOps, LowerTE, PlanDevices

op = relay.op
ZEROS = np.zeros(4, "float32")


def chain(length: int) -> relay.IRModule:
    x = relay.var("x", (4,))
    z: relay.Expr = x
    for _ in range(length):
        z = op.add(z, relay.const(1.0))
    return relay.module(relay.Function((x,), z))


def lets(length: int) -> relay.IRModule:
    x = relay.var("x", (4,))
    variables = [x, *(relay.var(f"v{i}") for i in range(length))]
    body: relay.Expr = variables[-1]
    for before, var in zip(reversed(variables[:-1]), reversed(variables[1:])):
        body = relay.Let(var, op.add(before, relay.const(1.0)), body)
    return relay.module(relay.Function((x,), body))


@pytest.mark.parametrize(("build", "length"), [(chain, 3_000), (lets, 3_000)])
def test_deep_graphs_are_lowered_and_run(
    build: Callable[[int], relay.IRModule], length: int
) -> None:
    assert sys.getrecursionlimit() <= 1000
    # Verification types everything again after every pass, which is tested elsewhere.
    with PassContext():
        fused = FuseOps()(build(length))
        sizes = [len(ops) for ops, _ in kernels(fused)]
        assert sum(sizes) == length
        assert max(sizes) <= 256
        lowered = LowerTE(mod_name="m", target="reference")(fused)
    np.testing.assert_array_equal(compiler.evaluate(lowered, [ZEROS])[0], ZEROS + length)


@pytest.mark.parametrize("build", [chain, lets])
def test_long_lowered_graphs_are_planned_printed_and_read_back(
    build: Callable[[int], relay.IRModule],
) -> None:
    planned = PlanDevices("reference")(FuseOps()(build(1_000)))
    lowered = LowerTE(mod_name="m")(planned)
    again = compiler.infer_module(compiler.parse(compiler.text(lowered)))
    assert compiler.structural_equal(again, lowered)
    np.testing.assert_array_equal(compiler.evaluate(again, [ZEROS])[0], ZEROS + 1_000)
