"""Concatenations of many tensors become trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler import relay
from compiler.errors import CompilerError
from compiler.ir.analysis import extract_calls
from compiler.ir.pass_infra import PassContext
from compiler.testing import kernels
from compiler.transform import FuseOps, SplitConcat

op = relay.op


def wide(count: int) -> relay.IRModule:
    parts = [relay.var(f"x{i}", (1, 1 + i % 3), "int8") for i in range(count)]
    return relay.module(relay.Function(tuple(parts), op.concatenate(parts, axis=1)))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 60), max_args=st.integers(3, 12))
def test_the_value_stays_and_no_concatenation_is_wider(count: int, max_args: int) -> None:
    mod = wide(count)
    new = SplitConcat(max_args=max_args)(mod)
    for call in extract_calls(new["main"], "concatenate"):
        assert len(call.args[0].operands()) + 1 <= max_args
    inputs = [np.full((1, 1 + i % 3), i, "int8") for i in range(count)]
    np.testing.assert_array_equal(
        compiler.evaluate(new, inputs)[0], compiler.evaluate(mod, inputs)[0]
    )
    with PassContext(config={"relay.FuseOps.max_args": max_args}):
        assert all(params + 1 <= max_args for _, params in kernels(FuseOps()(new)))


def test_a_limit_that_joins_nothing_is_refused() -> None:
    with pytest.raises(CompilerError, match="max_args is 2"):
        SplitConcat(max_args=2)(wide(5))
