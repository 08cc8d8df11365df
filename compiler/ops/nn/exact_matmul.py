"""Matrix products of integers, exact and on BLAS.

A sum of products is exact in floating point when no partial sum, in any order, can leave the range
of exact integers: 2^24 for float32, 2^53 for float64. The bound max|a| * max_column(sum|b|) is
computed from the actual values, which is far tighter than one from the dtypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ops.number_format import Array, storage_dtype


def absolute_sum(weight: Array, axes: tuple[int, ...]) -> int:
    """The largest sum of |w| over ``axes``: how much one output can amplify max|x|."""
    if weight.size == 0:
        return 0
    if weight.dtype.itemsize <= 4:
        # Not through abs, which the least int8 has none of.
        wide = np.maximum(weight, 0).sum(axis=axes, dtype=np.int64)
        wide = wide - np.minimum(weight, 0).sum(axis=axes, dtype=np.int64)
    else:
        wide = np.abs(weight.astype(object)).sum(axis=axes)
    return int(np.max(wide))


def _magnitude(values: Array) -> int:
    """max|x| of an integer array, as a Python int; 0 when empty."""
    if values.size:
        return max(int(values.max()), -int(values.min()))
    return 0


def working_dtype(dtype: str, data: Array, weight: Array, axes: tuple[int, ...]) -> np.dtype[Any]:
    """The dtype to multiply ``data`` with ``weight`` in, for a result of ``dtype``.

    Args:
        dtype: dtype of the result.
        data: activations, any shape.
        weight: the other operand; ``axes`` are its summed axes.
    """
    if dtype.startswith("float"):
        return np.dtype(np.float64 if dtype == "float64" else np.float32)
    bound = _magnitude(data) * absolute_sum(weight, axes)
    if bound < 1 << 24:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if bound < 1 << 53 else np.int64)  # 64 bits wrap


def as_result(product: Array, dtype: str) -> Array:
    """A product in its working dtype as the result dtype; integers wrap."""
    target = storage_dtype(dtype)
    if product.dtype == target:
        return product
    if product.dtype.kind == "f" and target.kind in "iu" and target.itemsize < 8:
        # At most 2^53 here: through int64 the narrowing wraps, from a float it would not.
        if product.dtype == np.float32 and target.itemsize == 4:
            return product.astype(target)
        return product.astype(np.int64).astype(target)
    return product.astype(target)


def matmul(lhs: Array, rhs: Array, dtype: str) -> Array:
    """``lhs @ rhs`` (batched as numpy's matmul) with result ``dtype``; integers wrap to it.

    Args:
        lhs: (…, M, K).
        rhs: (…, K, N), of a dtype of the same kind.
    """
    work = working_dtype(dtype, lhs, rhs, (-2,))
    return as_result(np.matmul(lhs.astype(work, copy=False), rhs.astype(work, copy=False)), dtype)
