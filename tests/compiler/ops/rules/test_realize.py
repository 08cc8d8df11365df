"""Integers with a scale: what is taken of their bounds, and what may be narrowed."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CompilerError
from compiler.ir.expr import Call
from compiler.ops.rules.realize import QRealizeIntExpr
from tests.compiler.bounded import bounds_with

SCALE = relay.const(np.float32(0.5))
X = relay.var("x", (2,), "int32")


@pytest.mark.parametrize(
    ("low", "high", "fit"),
    [(-128, 127, True), (-129, 127, False), (-127, 128, False), (0, 0, True), (-300, 4, False)],
)
def test_only_what_the_dtype_holds_is_narrowed_without_a_clip(
    low: int, high: int, fit: bool
) -> None:
    call = relay.op.add(X, X)
    assert isinstance(call, Call)
    value = QRealizeIntExpr(X, SCALE, "int32", bounds_with(X, low, high))
    assert value.fits("int8") is fit
    if fit:
        value.check_fits("int8", call)
        return
    with pytest.raises(CompilerError, match=f"values from {low} to {high} would be cast to int8"):
        value.check_fits("int8", call)
