"""Where integer arithmetic wraps: for the reference executor's ``check_overflow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.lowered_function import Array
from compiler.lir.scalars import Bin, Cast, Intrin, Scalar, Un


def wraps(node: Scalar, values: Sequence[Array], value: Array) -> Array | None:
    """True where ``node`` of these operand values is not the exact ``value``; None: nowhere.

    Args:
        node: arithmetic, a cast or an intrinsic.
        values: of its operands.
        value: the wrapped result.
    """
    if value.dtype.kind not in "iu":
        return None
    found = _wraps(node, values, value)
    return None if found is None or not np.any(found) else np.asarray(found)


def _wraps(node: Scalar, values: Sequence[Array], value: Array) -> Any:
    if isinstance(node, Bin):
        return _of_binary(node.op, values[0], values[1], value)
    if isinstance(node, Un) and node.op in ("neg", "abs") and value.dtype.kind == "i":
        return np.equal(values[0], np.iinfo(value.dtype).min)
    if isinstance(node, Cast) and values[0].dtype.kind in "iu":
        there = value.astype(values[0].dtype)
        return np.logical_or(there != values[0], (there < 0) != (value < 0))
    if isinstance(node, Intrin) and node.name == "fixed_point_multiply":
        x, multiplier, shift = (v.astype(np.float64) for v in values)
        return np.greater(np.abs(x * multiplier * np.exp2(shift - 31) - value), 1)
    return None


def _of_binary(op: str, a: Array, b: Array, value: Array) -> Any:
    if op == "<<":
        amount = b & b.dtype.type(a.dtype.itemsize * 8 - 1)
        return np.not_equal(np.right_shift(value, amount), a)
    if op not in ("+", "-", "*"):
        return None
    if value.dtype.itemsize < 8:
        exact = {"+": np.add, "-": np.subtract, "*": np.multiply}[op]
        return np.not_equal(exact(a.astype(np.int64), b.astype(np.int64)), value)
    if op == "*":
        back = np.floor_divide(value, np.where(a == 0, 1, a))
        lowest = value.dtype.kind == "i" and np.iinfo(value.dtype).min
        turned = np.logical_and(a.astype(np.float64) == -1, b == lowest)
        return np.logical_and(a != 0, np.logical_or(back != b, turned))
    if value.dtype.kind == "u":
        return np.less(value, a) if op == "+" else np.less(a, b)
    if op == "+":
        return np.less((a ^ value) & (b ^ value), 0)
    return np.less((a ^ b) & (a ^ value), 0)
