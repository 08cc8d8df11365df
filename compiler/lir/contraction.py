"""Sums of products over loops as matrix products; exact for integers.

Integers are carried in the smallest float dtype in which no partial sum can be rounded, found from
the actual values: 2^24 for float32, 2^53 for float64; beyond, in int64, which wraps like any
narrower accumulator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


EXACT_F32 = 1 << 24
EXACT_F64 = 1 << 53


def magnitude(values: Array) -> int:
    """max|x| of an integer array, as a Python int; 0 when empty."""
    return max(int(values.max()), -int(values.min())) if values.size else 0


def carrier(bound: int) -> np.dtype[Any]:
    """The dtype in which sums up to ``bound`` are exact: float32, float64, or int64 (wraps)."""
    if bound < EXACT_F32:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if bound < EXACT_F64 else np.int64)


def contract(
    a: Array, b: Array, loops: tuple[int, ...], kept: int, dtype: str
) -> tuple[Array, int]:
    """sum over the inner loops of a * b.

    Args:
        a: of the rank of the loops, size 1 along loops that it does not depend on.
        b: likewise; integers of any width, or floats of ``dtype``.
        loops: extents; the first ``kept`` of them stay.
        kept: number of loops that stay.
        dtype: of the result; "int64" for integers, which the caller wraps.

    Returns:
        The sums, of shape ``loops[:kept]`` with size 1 where they do not vary, and a bound on the
        magnitude of every partial sum (0 for floats).
    """
    whole = dtype == "int64"
    neither = math.prod(
        loops[k] for k in range(kept, len(loops)) if a.shape[k] == 1 and b.shape[k] == 1
    )
    for place in range(kept, len(loops)):
        # A loop that only one side knows is summed there first.
        if a.shape[place] == 1 and b.shape[place] > 1:
            a, b = b, a
        if b.shape[place] == 1 and a.shape[place] > 1:
            a = a.sum(axis=place, keepdims=True, dtype=np.int64 if whole else a.dtype)
    ways: dict[tuple[bool, bool], list[int]] = {}
    for k in range(kept):
        ways.setdefault((a.shape[k] > 1, b.shape[k] > 1), []).append(k)
    both, rows = ways.get((True, True), []), ways.get((True, False), [])
    columns = ways.get((False, True), [])
    summed = [k for k in range(kept, len(loops)) if a.shape[k] > 1]
    left, right = _arranged(a, (both, rows, summed)), _arranged(b, (both, summed, columns))
    bound = 0
    work = np.dtype(dtype)
    if whole:
        largest = np.abs(right.astype(np.float64)).sum(axis=1).max() if right.size else 0.0
        bound = int(magnitude(left) * largest * (1 + 1e-9)) * max(neither, 1) + 1
        work = carrier(bound)
    product = np.matmul(left.astype(work, copy=False), right.astype(work, copy=False))
    product = product.astype(dtype, copy=False)
    if neither != 1:
        product = product * product.dtype.type(neither)
    order = [*both, *rows, *columns]
    sizes = [loops[k] for k in order]
    rest = [k for k in range(kept) if k not in order]
    spread = product.reshape((*sizes, *(1 for _ in rest)))
    return spread.transpose(np.argsort([*order, *rest])), bound


def _arranged(array: Array, groups: tuple[list[int], list[int], list[int]]) -> Array:
    """Rank 3: one axis per group of loops; loops outside all groups (of size 1) are dropped."""
    order = [k for group in groups for k in group]
    rest = [k for k in range(array.ndim) if k not in order]
    moved = array.transpose(*order, *rest)
    return moved.reshape(tuple(math.prod(array.shape[k] for k in group) for group in groups))
