"""Conversions between the IR's dtypes on numpy arrays: wrap, saturate, truncate.

Integers wrap. Floats become integers by truncation towards zero; values out of range saturate and
NaN becomes 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.ty import integer_range

Array = NDArray[Any]

_STORAGE = {"int4": "int8", "uint4": "uint8"}


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds an IR dtype; int4 and uint4 lie in bytes."""
    return np.dtype(_STORAGE.get(dtype, dtype))


def aligned_vector(vector: Array, axis: int, rank: int) -> Array:
    """A vector in the shape that broadcasts along one axis of data of this rank."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def working(array: Array) -> Array:
    """float16 in float32, the rest as it is."""
    if array.dtype == np.float16:
        return array.astype(np.float32)
    return array


def convert(array: Array, dtype: str) -> Array:
    """``cast``: float → int truncates and saturates (NaN gives 0), int → narrower int wraps,
    number → bool is "not zero", anything → float rounds to nearest even."""
    target = storage_dtype(dtype)
    if dtype in _STORAGE:
        return _to_nibble(array, dtype)
    if array.dtype == target:
        return array
    if target.kind == "b":
        return np.not_equal(array, 0)
    if array.dtype.kind == "f" and target.kind in "iu":
        return _float_to_int(array, target)
    return array.astype(target)


def _float_to_int(array: Array, target: np.dtype[Any]) -> Array:
    info = np.iinfo(target)
    # The bounds must be exact in the dtype of the comparison: float64 for 32 and 64 bit targets.
    wide = array
    if array.dtype == np.float16 or target.itemsize >= 4:
        wide = array.astype(np.float32 if target.itemsize < 4 else np.float64, copy=False)
    low, high = float(info.min), float(info.max) + 1.0
    inside = (wide > low - 1.0) & (wide < high)
    if inside.all():
        return wide.astype(target)
    result = np.where(inside, wide, 0).astype(target)
    return np.where(wide >= high, info.max, np.where(wide <= low, info.min, result)).astype(target)


def _to_nibble(array: Array, dtype: str) -> Array:
    low, high = integer_range(dtype)
    if array.dtype.kind == "f":
        held = np.where(np.isnan(array), 0, np.clip(np.trunc(array), low, high))
        return held.astype(storage_dtype(dtype))
    wrapped = (array.astype(np.int64) - low) % 16 + low
    return wrapped.astype(storage_dtype(dtype))
