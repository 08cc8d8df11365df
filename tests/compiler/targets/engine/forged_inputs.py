"""Inputs for functions of forged modules: every integer of a dtype, and every kind of float."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range, is_float
from compiler.ops.number_format import storage_dtype

Array = NDArray[Any]
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-45, 0.5, -1.5, 3e38, -3e38)


def forged_inputs(mod: IRModule, function: str, rng: np.random.Generator) -> list[list[Array]]:
    """Inputs of one function: anything, the smallest, the largest, and both ends mixed."""
    types = [param.tensor_type for param in mod[function].params]
    return [[_drawn(t.concrete_shape, t.dtype, how, rng) for t in types] for how in range(4)]


def _drawn(shape: tuple[int, ...], dtype: str, how: int, rng: np.random.Generator) -> Array:
    stored = storage_dtype(dtype)
    if is_float(dtype):
        with np.errstate(over="ignore", under="ignore"):
            usual = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4)
            return np.where(how > 1, rng.choice(SPECIAL, shape), usual).astype(stored)
    low, high = (0, 1) if dtype == "bool" else integer_range(dtype)
    if how == 0:
        wide = "uint64" if high >= 1 << 63 else "int64"
        return rng.integers(low, high, shape, dtype=wide, endpoint=True).astype(stored)
    ends = np.array([low, high], stored)
    return rng.choice(ends, shape) if how == 3 else np.full(shape, ends[how - 1], stored)
