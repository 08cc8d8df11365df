"""What TFLM's kernels compute: its softmax, and norms made of its operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.errors import TypeInferenceError
from compiler.export.to_tflite.file import FileWriter, Grid
from compiler.ir.expr import Constant
from compiler.ir.inference.infer_type import infer_module
from compiler.ops.nn.integer_standardize import tflm_standardize
from compiler.ops.nn.softmax import MOST_SUMMANDS, exponentials
from compiler.ops.rules.realize import QRealizeIntExpr
from compiler.ranges.expressions import ExpressionRanges
from compiler.targets.tflite.interpreters import JUDGES, interpreter
from tests.needs import missing

SCALES = (2.0**-23, 0.001, 0.037, 0.1, 0.3, 1.0, 3.0, 40.0, 600.0)


def softmax_file(rows: int, count: int, scale: float) -> bytes:
    writer = FileWriter()
    data = writer.tensor("x", (rows, count), "int8", Grid((scale,), 3))
    made = writer.tensor("y", (rows, count), "int16", Grid((2.0**-16,), -(1 << 15)))
    writer.operator("SOFTMAX", [data], made, beta=1.0)
    return writer.finish({"x": data}, {"y": made})


@pytest.mark.parametrize("count", [1, 2, 30, 211])
@pytest.mark.parametrize("scale", SCALES)
def test_the_softmax_is_that_of_both_interpreters(scale: float, count: int) -> None:
    pytest.importorskip("ai_edge_litert", reason=missing("the Python packages of the tests"))
    pytest.importorskip("tflite_micro", reason=missing("the Python packages of the tests"))
    scale = float(np.float32(scale))
    data = np.random.default_rng(count).integers(-128, 128, (40, count)).astype("int8")
    data[0], data[1, 0] = 127, -128
    x = relay.var("x", data.shape, "int8")
    call = relay.op.nn.fixed_point_softmax(x, relay.const(exponentials(scale)))
    (wanted,) = evaluate(relay.module(call), [data])
    for name in JUDGES:
        run, _ = interpreter(name, softmax_file(40, count, scale))
        np.testing.assert_array_equal(run([data])[0].astype(np.int32) + (1 << 15), wanted)


@pytest.mark.parametrize("scale", SCALES[1:7])
def test_it_is_a_softmax(scale: float) -> None:
    data = np.random.default_rng(0).integers(-128, 128, (50, 49)).astype("int8")
    x = relay.var("x", data.shape, "int8")
    call = relay.op.nn.fixed_point_softmax(x, relay.const(exponentials(scale)))
    (found,) = evaluate(relay.module(call), [data])
    e = np.exp((data - data.max(1, keepdims=True).astype(float)) * scale)
    assert np.abs(found - e / e.sum(1, keepdims=True) * 2**16).max() <= 2


def test_scales_without_a_kernel_have_no_table() -> None:
    assert exponentials(2.0**-27) is None


@pytest.mark.parametrize(
    ("data", "shape", "table"),
    [
        ("int16", (2, 3), "int32"),
        ("int8", (2, 3), "int16"),
        ("int8", (2, MOST_SUMMANDS + 1), "int32"),
    ],
)
def test_other_types_are_refused(data: str, shape: tuple[int, ...], table: str) -> None:
    x = relay.var("x", shape, data)
    call = relay.op.nn.fixed_point_softmax(x, relay.const(np.ones(4, table)))
    with pytest.raises(TypeInferenceError):
        infer_module(relay.module(call))


def standardized(data: Any, centred: bool, epsilon: float = 1e-5) -> Any:
    """The normalised rows in float64."""
    wide = data.astype(np.float64)
    if centred:
        wide = wide - wide.mean(1, keepdims=True)
    return wide / np.sqrt((wide**2).mean(1, keepdims=True) + epsilon)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("dtype", "spread"), [("int8", 4), ("int8", 40), ("int16", 90), ("int16", 9000)]
)
def test_norms_are_within_a_hundredth(dtype: str, spread: int, centred: bool) -> None:
    rng = np.random.default_rng(spread)
    limits = np.iinfo(dtype)
    data = rng.normal(0, spread, (200, 48)) * rng.uniform(0.5, 1.5, (200, 1)) + spread * centred
    data = np.clip(np.rint(data), limits.min, limits.max).astype(dtype)
    x = relay.var("x", data.shape, dtype)
    value = QRealizeIntExpr(x, Constant(np.float32(0.0625)), dtype, ExpressionRanges().of)
    made = tflm_standardize(value, 1, 48, 1e-5, centred, 11)
    (found,) = evaluate(relay.module(made), [data])
    assert found.dtype == np.int32
    wanted = standardized(data * 0.0625, centred)
    assert np.abs(found / 2**11 - wanted).max() < 0.1
    error = ((found / 2**11 - wanted) ** 2).mean() / (wanted**2).mean()
    assert error < 10**-3.8


def test_equal_rows_are_zero() -> None:
    data = np.full((3, 16), 77, np.int8)
    x = relay.var("x", data.shape, "int8")
    value = QRealizeIntExpr(x, Constant(np.float32(1)), "int8", ExpressionRanges().of)
    (found,) = evaluate(relay.module(tflm_standardize(value, 1, 16, 1e-5, True, 10)), [data])
    assert not found.any()
