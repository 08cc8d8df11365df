"""Routines on whole buffers: in C where they have a C form, else by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import evaluate, lower, relay
from compiler.errors import CodegenError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.targets.c.executor import CExecutor
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


def running_sums(dtype: str, axis: int, exclusive: bool) -> IRModule:
    x = relay.var("x", (3, 4, 5), dtype)
    body = relay.op.cumsum(x, axis=axis, exclusive=exclusive)
    return infer_module(relay.module(relay.Function((x,), body)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_wrap_as_the_reference_does(axis: int, exclusive: bool) -> None:
    rng = np.random.default_rng(axis + 5)
    given = {"x": rng.integers(-(2**31), 2**31, (3, 4, 5), "int64").astype("int32")}
    mod = running_sums("int32", axis, exclusive)
    np.testing.assert_array_equal(CExecutor(mod).run(given)[0], evaluate(mod, given)[0])


def test_what_has_no_c_form_is_named_by_export_and_evaluated_with_numpy_elsewhere() -> None:
    x = relay.var("x", (4, 6))
    mod = infer_module(
        relay.module(
            relay.Function((x,), relay.op.topk(x, k=6, axis=1, ret_type="values", is_ascend=True))
        )
    )
    with pytest.raises(CodegenError, match="routine in C 'topk'"):
        CExecutor(mod)
    given = {"x": np.random.default_rng(0).normal(size=(4, 6)).astype("float32")}
    np.testing.assert_array_equal(lower(mod, target="c").run(given)[0], np.sort(given["x"], axis=1))
