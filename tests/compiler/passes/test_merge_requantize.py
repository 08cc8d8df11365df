"""MergeRequantize on random limits in front of requantizations of every rounding."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import evaluate, relay, transform
from compiler.ir.expr import Call, Expr, Op
from compiler.ir.walk import mentions
from compiler.ops.qnn.requantize import ROUNDINGS, RequantizeAttrs

CHANNELS = 3
op = relay.op


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_merged_limits_keep_every_value(rounding: str) -> None:
    rng = np.random.default_rng(ROUNDINGS.index(rounding))
    merged = 0
    for _ in range(60):
        x = relay.var("x", (1, CHANNELS, 64), "int16")
        shifts = rng.integers(-9, 3, CHANNELS)
        multipliers = rng.integers(1 << 30, 1 << 31, CHANNELS)
        limits = rng.integers(-300, 3000, 2)
        data: Expr = op.cast(x, dtype="int32")
        if rng.integers(2):
            data = op.add(data, relay.const(rng.integers(-9, 9, (CHANNELS, 1)).astype("int32")))
        data = op.clip(data, a_min=float(limits.min()), a_max=float(limits.max()))
        low, high = sorted(rng.integers(-128, 128, 2).tolist())
        attrs = RequantizeAttrs(
            multiplier=int(multipliers[0]),
            shift=int(shifts[0]),
            rounding=rounding,
            zero_point=int(rng.integers(-9, 9)),
            low=low,
            high=high,
            compute_dtype="int32" if rounding == "tflm" else "int64",
        )
        vectors = [relay.const(v.astype("int32")) for v in (multipliers, shifts)]
        args = (data, *(vectors if rng.integers(2) else ()))
        mod = relay.module(Call(Op.get("qnn.requantize"), args, attrs))
        made = transform.Sequential.from_text("MergeRequantize")(mod)
        merged += not mentions(made["main"], ("clip",))
        inputs = [rng.integers(-4000, 4000, (1, CHANNELS, 64)).astype("int16")]
        np.testing.assert_array_equal(evaluate(made, inputs)[0], evaluate(mod, inputs)[0])
    assert merged == 0 if rounding == "tflm" else 5 < merged < 60  # of int32


def test_limits_stay_in_front_of_a_factor_below_zero() -> None:
    x = relay.var("x", (1, 2, 64), "int32")
    data = op.clip(x, a_min=0.0, a_max=1000.0)
    vectors = [relay.const(np.array(v, "int32")) for v in ([-(1 << 30)] * 2, [-9] * 2)]
    attrs = RequantizeAttrs(low=-128, high=127, compute_dtype="int64")
    mod = relay.module(Call(Op.get("qnn.requantize"), (data, *vectors), attrs))
    made = transform.Sequential.from_text("MergeRequantize")(mod)
    inputs = [np.random.default_rng(0).integers(-4000, 4000, (1, 2, 64)).astype("int32")]
    np.testing.assert_array_equal(evaluate(made, inputs)[0], evaluate(mod, inputs)[0])
