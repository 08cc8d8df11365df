"""Modules for tests of the kernels, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.ops.rules.integer_calls import requantize
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.targets.engine.emulated import libraries

Array = np.ndarray[Any, Any]


EXTREMES = {"uint8": [0, 255], "int8": [-128, 127], "int16": [-32768, 32767]}


def agree(mod: IRModule, *inputs: Array) -> EngineExecutor:
    """``all_agree`` on one sample."""
    return all_agree(mod, inputs)


def all_agree(mod: IRModule, *samples: Sequence[Array]) -> EngineExecutor:
    """Every instruction set gives the reference's integers, in one thread and in three; the last
    executor."""
    reference, executor = ReferenceExecutor(mod), None
    cases = [(list(sample), reference.run(list(sample))) for sample in samples]
    for library in libraries():
        executor, isa = EngineExecutor(mod, isa=library), library.isa
        for sample, wanted in cases:
            alone, together = executor.run(sample), executor.run_together(sample, 3)
            for left, right, shared in zip(wanted, alone, together, strict=True):
                np.testing.assert_array_equal(left, right, err_msg=isa)
                np.testing.assert_array_equal(left, shared, err_msg=f"{isa}, three threads")
    assert executor is not None
    return executor


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, extreme: bool) -> Array:
    if extreme:
        return rng.choice(EXTREMES[dtype], shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def requantized(
    product: Expr, channels: int, axis: int, rng: np.random.Generator, wide: bool = False
) -> Expr:
    """Bias, factor a channel, clip and cast, as the quantizer writes them.

    Args:
        wide: to int16, of 12 or 16 bits, or with an end in each channel.
    """
    op = relay.op
    shape = [1] * 4
    shape[axis] = channels
    bias = rng.integers(-5000, 5000, shape[axis:] if axis else shape).astype("int32")
    sums = op.cast(op.add(product, relay.const(bias)), dtype="int64")
    powers = rng.random() < 0.2
    factor = np.where(powers, 1 << 30, rng.integers(1 << 30, (1 << 31) - 1, channels))
    if rng.random() < 0.7:  # most scales are float32, of 24 bits
        factor &= ~127
    shift = rng.integers(-14, -1, channels) + 4 * wide
    scaled = op.fixed_point_multiply_per_axis(
        sums, relay.const(factor.astype("int32")), relay.const(shift.astype("int32")), axis=axis
    )
    if wide:
        if rng.random() < 0.3:
            ends = rng.integers(300, 3000, shape[axis:] if axis else shape)
            scaled = op.minimum(scaled, relay.const(ends.astype("int64")))
        most = rng.choice([2047, 32767])
        low = 0 if rng.random() < 0.3 else -most
        return op.cast(op.clip(scaled, a_min=int(low), a_max=int(most)), dtype="int16")
    signed = bool(rng.random() < 0.5)
    low, high, dtype = (-128, 127, "int8") if signed else (0, 255, "uint8")
    return op.cast(op.clip(scaled, a_min=low, a_max=high), dtype=dtype)


def x_shape(x: Any) -> tuple[int, ...]:
    return tuple(x.type_annotation.concrete_shape)


def shifted_to_even(x: Expr, bits: Array, axis_size: tuple[int, ...]) -> Expr:
    """x * 2^-bits; the axis of the bits has all elements of ``axis_size``."""
    down = 1 - bits.astype(np.int64)
    fields: dict[str, Any] = {"rounding": "even", "compute_dtype": "int32", "out_dtype": "int32"}
    if len(bits) == 1:
        return requantize(x, shift=int(down[0]), **fields)
    axis = -len(axis_size)
    return requantize(x, np.full_like(down, POWER_OF_TWO), down, axis=axis, **fields)
