"""What a QDQ file writes in integer words, bit for bit with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.ir.expr import Expr
from compiler.targets.ort.session import OrtExecutor

op = relay.op
seeds = st.integers(0, 1 << 20)


def assert_same_in_qdq(x: Any, result: Expr, data: np.ndarray) -> None:
    mod = relay.module(relay.Function((x,), result))
    (got,), (wanted,) = OrtExecutor(to_qdq_onnx(mod).model).run({"x": data}), evaluate(mod, [data])
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    data.flat[: min(2, data.size)] = (info.min, info.max)[: min(2, data.size)]
    return data


@given(
    seeds,
    st.sampled_from(("int8", "uint8", "int16", "uint16")),
    st.sampled_from((1, 100, 256)),
    st.sampled_from((7, 20, 28)),
)
@settings(max_examples=30, deadline=None)
def test_tables_are_read_at_every_integer(seed: int, dtype: str, size: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (2, 300), dtype)
    table = relay.const(rng.integers(-(1 << width), 1 << width, size).astype("int32"))
    assert_same_in_qdq(x, op.lookup(x, table), values(rng, dtype, (2, 300)))


@pytest.mark.parametrize(
    "formula",
    [
        "x x 0.70710677 multiply erf 1.0 add multiply 0.5 multiply",
        "x 3.0 add 6.0 minimum 0.0 maximum x multiply 6.0 divide",
        "x 0.0 greater x x exp 1.0 subtract where",
        "x",
        "2.5",
        "x 1.0 less x x multiply sqrt x negative where",
    ],
)
def test_formulas_are_written_out_operator_by_operator(formula: str) -> None:
    x = relay.var("x", (3, 4))
    mod = relay.module(op.unary_formula(x, formula=formula))
    data = np.linspace(-5, 5, 12, dtype="float32").reshape(3, 4)
    got = OrtExecutor(to_onnx(mod)).run({"x": data})[0]
    # onnxruntime's exp and erf differ from numpy's in the last digits.
    np.testing.assert_allclose(got, evaluate(mod, [data])[0], rtol=2e-6, atol=1e-6)


@given(
    seeds,
    st.sampled_from(("int8", "int16", "int32")),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(("reflect", "edge")),
)
@settings(max_examples=20, deadline=None)
def test_repeated_and_reflected_elements_are_the_right_ones(
    seed: int, dtype: str, size: tuple[int, int], mode: str
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (1, 2, 4, 5), dtype)
    resized = op.image.resize2d(
        x,
        size=size,
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )
    widths = ((0, 0), (1, 1), (2, 1), (3, 0))
    repeated = op.nn.upsampling(x, scale_h=2, scale_w=3, method="nearest_neighbor")
    padded = op.nn.pad(x, relay.const(np.array(0, dtype)), pad_width=widths, pad_mode=mode)
    for call in (resized, repeated, padded):
        assert_same_in_qdq(x, call, values(rng, dtype, (1, 2, 4, 5)))
