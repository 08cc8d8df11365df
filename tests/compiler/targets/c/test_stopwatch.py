"""Timing a module as C: what is timed is the module, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CodegenError
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.targets.c import stopwatch, toolchain
from compiler.targets.c.stopwatch import timed_run
from compiler.targets.c.toolchain import Command


@pytest.fixture
def two_inputs() -> IRModule:
    """Tuple of two results of two inputs, of unlike types."""
    op = relay.op
    x, y = relay.var("x", (3, 4), "int32"), relay.var("y", (4,))
    total = op.add(op.cast(x, dtype="float32"), y)
    body = relay.Tuple((total, op.multiply(x, x)))
    return relay.module(relay.Function((x, y), body))


def test_the_outputs_are_those_of_the_reference(cc: Command, two_inputs: IRModule) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.integers(-(2**20), 2**20, (3, 4), dtype=np.int32),
        "y": rng.standard_normal(4, dtype=np.float32),
    }
    outputs, milliseconds = timed_run(two_inputs, inputs)
    for ours, theirs in zip(outputs, evaluate(two_inputs, inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert 0 < milliseconds < float("inf")


def test_a_program_that_breaks_down_is_an_error(
    cc: Command, two_inputs: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = "#include <stdlib.h>\nint main(void) { abort(); }\n"
    monkeypatch.setattr(stopwatch, "_driver", lambda package: driver)
    inputs = {"x": np.zeros((3, 4), np.int32), "y": np.zeros(4, np.float32)}
    with pytest.raises(CodegenError, match="the module in C ended with -6"):
        timed_run(two_inputs, inputs)


def test_without_a_compiler_it_says_so(
    two_inputs: IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_compiler", lambda: None)
    with pytest.raises(CodegenError, match="no C compiler found"):
        timed_run(two_inputs, {})
