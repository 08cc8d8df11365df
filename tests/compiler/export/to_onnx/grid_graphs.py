"""Quantized graphs for the tests of the integer grid, and their comparison with the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from compiler import relay
from compiler.export.to_onnx.grid import to_grid_onnx
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.targets.ort import narrow_kernels
from compiler.targets.ort.session import OrtExecutor

op = relay.op


def constant(values: Any, dtype: str = "int32") -> Expr:
    """Integers, or float32, as a constant."""
    return relay.const(np.asarray(values, dtype))


def multiplier_and_shift(value: float) -> tuple[int, int]:
    """(M, e) with factor = M * 2^(e - 31) and M in [2^30, 2^31), for a float32 factor."""
    fraction, exponent = np.frexp(np.float64(np.float32(value)))
    multiplier = int(np.floor(fraction * 2**31 + 0.5))
    return (multiplier, int(exponent)) if multiplier < 1 << 31 else (1 << 30, int(exponent) + 1)


def quantized(x: Expr, scale: float = 16.0) -> Expr:
    """A float input as int8."""
    rounded = op.round(op.multiply(x, constant(scale, "float32")))
    return op.cast(op.clip(rounded, a_min=-127, a_max=127), dtype="int8")


def narrow(x: Expr, low: int = -127) -> Expr:
    """Limited to what int8 holds."""
    return op.cast(op.clip(x, a_min=low, a_max=127), dtype="int8")


def requantized(x: Expr, factor: float) -> Expr:
    """Scaled as UPWARD rounding does, one factor for all."""
    m, e = multiplier_and_shift(factor)
    return narrow(op.fixed_point_multiply(op.cast(x, dtype="int64"), multiplier=m, shift=e))


def requantized_per_axis(x: Expr, factors: np.ndarray, axis: int = 1) -> Expr:
    """Scaled as UPWARD rounding does, a factor per channel."""
    pairs = [multiplier_and_shift(f) for f in factors]
    wide = op.cast(x, dtype="int64")
    m, e = (constant([p[i] for p in pairs]) for i in (0, 1))
    return narrow(op.fixed_point_multiply_per_axis(wide, m, e, axis=axis))


def to_nearest(x: Expr, factor: float) -> Expr:
    """The operators that a product rounded TONEAREST consists of."""
    m, e = multiplier_and_shift(factor)
    left, right = max(e, 0), max(-e, 0)
    wide = op.cast(x, dtype="int64")
    if left:
        wide = op.left_shift(wide, constant(left, "int64"))
    product = op.multiply(wide, constant(m, "int64"))
    half = 1 << (30 + right)
    choice = op.where(
        op.greater_equal(product, constant(0, "int64")),
        constant(half, "int64"),
        constant(half - 1, "int64"),
    )
    shifted = op.right_shift(op.add(product, choice), constant(31 + right, "int64"))
    return narrow(op.cast(shifted, dtype="int32"))


def dequantized(x: Expr, scale: float = 0.0625) -> Expr:
    """Integers as real values, which is what a model returns."""
    return op.multiply(op.cast(x, dtype="float32"), constant(scale, "float32"))


def conv(x: Expr, rng: np.random.Generator, shape: tuple[int, ...], **attrs: Any) -> Expr:
    """A convolution with drawn int8 weights of this shape, summed in int32."""
    weight = constant(rng.integers(-127, 128, shape), "int8")
    return op.nn.conv2d(x, weight, out_dtype="int32", **attrs)


def module(x: Any, *results: Expr) -> IRModule:
    """The function of ``x`` that returns one value or several."""
    body = results[0] if len(results) == 1 else relay.Tuple(results)
    return relay.module(relay.Function((x,), body))


def grid(
    mod: IRModule, optimize: bool = True, function: str = "main", kernels: bool = False
) -> OrtExecutor:
    """The exported function in onnxruntime; ``kernels``: with its 8 bit kernels."""
    return OrtExecutor(
        to_grid_onnx(mod, function, kernels),
        optimize=optimize,
    )


def assert_same_integers(mod: IRModule, inputs: dict[str, np.ndarray]) -> None:
    """With and without onnxruntime's optimizers, and its 8 bit kernels."""
    expected = evaluate(mod, inputs)
    for optimize, kernels in product((True, False), (False, narrow_kernels.are_exact())):
        found = grid(mod, optimize, kernels=kernels).run(inputs)
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            # Bits, not values: -0.0 would change the hash of the outputs.
            assert a.tobytes() == b.tobytes()


def op_types(mod: IRModule, kernels: bool = False) -> list[str]:
    """ONNX operators of the export, in order."""
    return [n.op_type for n in to_grid_onnx(mod, narrow_kernels=kernels).graph.node]


def images(seed: int, *shape: int) -> dict[str, np.ndarray]:
    """Normal values as the input ``x``."""
    return {"x": np.random.default_rng(seed).normal(0, 3, shape).astype("float32")}
