"""qnn.requantize with TFLM's roundings against TensorFlow Lite's own formula, in every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ops.rules.integer_calls import requantize
from compiler.ops.rules.requantize import tflm_multiplier
from compiler.pipeline import evaluate
from compiler.targets.ort.integer_executor import OrtExecutor
from tests.needs import NEEDS_C


def as_tflite_writes_it(x: int, multiplier: int, shift: int) -> int:
    """RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(x << left, multiplier), right), with
    C's division, which goes toward 0."""
    left, right = max(shift, 0), max(-shift, 0)
    product = (x << left) * multiplier
    nudged = product + ((1 << 30) if product >= 0 else 1 - (1 << 30))
    high = abs(nudged) >> 31
    high = high if nudged >= 0 else -high
    mask = (1 << right) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> right) + ((high & mask) > threshold)


def numbers(rng: np.random.Generator, count: int) -> Any:
    near = np.arange(-600, 600)
    wide = rng.integers(-(1 << 29), 1 << 29, count)
    return np.concatenate([near, near << 9, wide]).astype(np.int32)


@pytest.mark.parametrize("executor", ["reference", "integer", pytest.param("c", marks=NEEDS_C)])
@pytest.mark.parametrize("limits", [(-(1 << 31), (1 << 31) - 1), (-128, 127)], ids=["any", "int8"])
@pytest.mark.parametrize("per_axis", [False, True], ids=["one factor", "per axis"])
def test_every_form_computes_what_tflite_writes(
    per_axis: bool, limits: tuple[int, int], executor: str
) -> None:
    rng = np.random.default_rng(7)
    shifts = np.array([-31, -30, -9, -8, -1, 0, 1, 0] if per_axis else [-7], np.int32)
    whole = rng.integers(1 << 30, 1 << 31, shifts.size)
    whole[-1], whole[0] = 1 << 30, (1 << 31) - 1
    reals = np.ldexp(whole.astype(np.float64), shifts - 31)
    multipliers = tflm_multiplier(reals)[0].astype(np.int32)
    data = np.repeat(numbers(rng, 2000)[:, None], shifts.size, axis=1)
    x = relay.var("x", data.shape, "int32")
    how: dict[str, Any] = {"rounding": "tflm", "out_dtype": "int32", "compute_dtype": "int32"}
    how |= {"low": limits[0], "high": limits[1]}
    if per_axis:
        made = requantize(x, multipliers, shifts, axis=1, **how)
    else:
        made = requantize(x, multiplier=int(multipliers[0]), shift=int(shifts[0]), **how)
    mod = relay.module(relay.Function([x], made))
    if executor == "integer":
        (found,) = OrtExecutor(to_integer_onnx(mod)).run({"x": data})
    else:
        (found,) = evaluate(mod, {"x": data}, executor)
    rows = data.tolist()
    pairs = list(zip(whole.tolist(), shifts.tolist(), strict=True))
    wanted = [[as_tflite_writes_it(v, *pair) for v, pair in zip(row, pairs)] for row in rows]
    np.testing.assert_array_equal(found, np.clip(wanted, *limits))


@pytest.mark.parametrize("shift", [-2, -7])
def test_the_exact_onnx_rounds_twice_in_front_of_limits(shift: int) -> None:
    data, x = np.arange(-600, 601).astype(np.int16), relay.var("x", (1201,), "int16")
    how = {"rounding": "tflm", "compute_dtype": "int32", "low": -128, "high": 127}
    made = requantize(x, multiplier=3 << 29, shift=shift, **how)
    mod = relay.module(relay.Function([x], made))
    (found,) = OrtExecutor(to_integer_onnx(mod)).run({"x": data})
    wanted = [as_tflite_writes_it(v, 3 << 29, shift) for v in data.tolist()]
    np.testing.assert_array_equal(found, np.clip(wanted, -128, 127))


def test_a_factor_for_each_of_other_channels_is_refused() -> None:
    x, two = relay.var("x", (2, 3), "int32"), np.zeros(2, np.int32)
    with pytest.raises(TypeInferenceError):
        relay.module(relay.Function([x], requantize(x, two, two, axis=1)))


def test_two_roundings_in_64_bits_are_refused() -> None:
    x = relay.var("x", (2, 3), "int32")
    with pytest.raises(TypeInferenceError, match="compute_dtype int32"):
        relay.module(relay.Function([x], requantize(x, rounding="tflm")))
