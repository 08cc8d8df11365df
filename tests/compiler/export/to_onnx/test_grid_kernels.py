"""The integer grid on onnxruntime's 8 bit kernels: drawn at random, and trained models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import quantize, relay
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Expr
from compiler.ops.rules.fixed_point import TIES, scaled
from compiler.ops.rules.float_product import nearest_float_factors, same_as_float_product
from compiler.pipeline import evaluate
from compiler.targets.ort import narrow_kernels
from tests.compiler.export.to_onnx.grid_graphs import (
    assert_same_integers,
    constant,
    conv,
    dequantized,
    grid,
    images,
    module,
    op_types,
    requantized,
)
from tests.compiler.quantize.candidates import calibrated

op = relay.op
REACH = (-(1 << 22), 1 << 22)


def near_factors(wanted: np.ndarray, bounds: tuple[int, int], rounding: str) -> np.ndarray:
    """Factors close to the wanted ones that one float32 product can stand for, where there are."""
    return nearest_float_factors(wanted.astype("float32"), TIES[rounding], REACH, bounds)


def is_proven(factors: np.ndarray, bounds: tuple[int, int], rounding: str) -> bool:
    fraction, exponent = np.frexp(factors)
    multiplier = np.ldexp(fraction, 24).astype(np.int64)
    shift = 24 - exponent.astype(np.int64)
    return bool(same_as_float_product(multiplier, shift, TIES[rounding], *REACH, bounds).all())


def stepped(
    total: Expr, factors: np.ndarray, bounds: tuple[int, int], dtype: str, rounding: str
) -> Expr:
    """Sums of a convolution, a factor per channel, scaled to ``dtype`` and limited."""
    narrowed = scaled(op.cast(total, dtype="int64"), factors, 2, 4, rounding)
    return op.cast(op.clip(narrowed, *bounds), dtype=dtype)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bounds=st.sampled_from([(0, 255), (-127, 127), (-128, 127), (0, 127), (-20, 235), (5, 90)]),
    channels=st.sampled_from([3, 16, 32, 40]),
    outputs=st.sampled_from([1, 16, 24]),
    window=st.sampled_from([(1, 0), (3, 1), (5, 2), (3, 0)]),
    stride=st.integers(1, 2),
    rounding=st.sampled_from(["UPWARD", "TONEAREST", "TONEAREST_EVEN"]),
)
def test_8_bit_kernels_agree(
    seed: int,
    bounds: tuple[int, int],
    channels: int,
    outputs: int,
    window: tuple[int, int],
    stride: int,
    rounding: str,
) -> None:
    """Depthwise and not, a pool between, what reads the result in float32, every range."""
    rng = np.random.default_rng(seed)
    low, high = bounds
    dtype = "int8" if low < 0 and high < 128 else "uint8" if low >= 0 else "int16"
    attrs = {"padding": (window[1],) * 4, "strides": (stride, stride)}
    x = relay.var("x", (1, channels, 9, 11))
    held = op.round(op.multiply(x, constant(40, "float32")))
    data = op.cast(op.clip(held, a_min=low, a_max=high), dtype=dtype)
    first = op.add(
        conv(data, rng, (channels, 1, 3, 3), groups=channels, padding=(1,) * 4),
        constant(rng.integers(-9000, 9000, (channels, 1, 1))),
    )
    factors = near_factors(np.exp2(rng.uniform(-11, -8, channels)), bounds, rounding)
    middle = stepped(first, factors, bounds, dtype, rounding)
    middle = op.nn.max_pool2d(middle, pool_size=(3, 2), strides=(1, 1), padding=(1, 0, 2, 1))
    second = conv(middle, rng, (outputs, channels, window[0], window[0]), **attrs)
    last_factors = near_factors(np.exp2(rng.uniform(-13, -10, outputs)), bounds, rounding)
    result = stepped(second, last_factors, bounds, dtype, rounding)
    wide = op.add(op.cast(result, dtype="int32"), constant(7))
    mod = module(x, dequantized(result), dequantized(wide))
    inputs = {"x": rng.normal(1, 4, (1, channels, 9, 11)).astype("float32")}
    assert_same_integers(mod, inputs)
    # One factor in hundreds has no neighbour that will do: its layer stays in float32.
    proven = [is_proven(f, bounds, rounding) for f in (factors, last_factors)]
    assert op_types(mod, kernels=True).count("QLinearConv") >= sum(proven)


def test_bounds_that_bytes_do_not_hold_keep_to_float32() -> None:
    rng = np.random.default_rng(3)
    x = relay.var("x", (1, 4, 6, 6))
    held = op.round(op.multiply(x, constant(90, "float32")))
    data = op.cast(op.clip(held, a_min=-300, a_max=300), dtype="int16")
    mod = module(x, dequantized(requantized(conv(data, rng, (4, 4, 3, 3)), 0.003)))
    assert_same_integers(mod, images(11, 1, 4, 6, 6))
    assert "QLinearConv" not in op_types(mod, kernels=True)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    ["digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_outlier", "efficientnet_lite0"],
)
def test_trained_models_give_the_same_bits(shared_data: Path, name: str) -> None:
    mod, params = load(shared_data / f"{name}.onnx")
    mod = quantize.prerequisite_optimize(mod, params, 3)
    shape = mod["main"].params[0].checked_type.shape
    rng = np.random.default_rng(0)
    batches = [{"input": rng.normal(0, 0.6, shape).astype("float32")} for _ in range(3)]
    config = quantize.QConfig.recommended()
    candidate = calibrated(mod, config, batches)
    assert candidate.partitioned is not None
    for kernels in (False, narrow_kernels.are_exact()):
        executor = grid(candidate.partitioned, kernels=kernels)
        for batch in batches:
            (expected,) = evaluate(candidate.partitioned, batch)
            (found,) = executor.run(batch)
            assert found.tobytes() == expected.tobytes()
    types = op_types(candidate.partitioned, kernels=True)
    assert types.count("QLinearConv") >= 3
    assert types.count("Conv") == 0
