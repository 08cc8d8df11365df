"""Loops of reductions over axes of one tensor, shared by the operators of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.ty import integer_range
from compiler.lir.builder import AXIS_NAMES, LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Scalar, literal

Value = Callable[[tuple[Scalar, ...]], Scalar]


def lowest(dtype: str) -> Scalar:
    """What every value of the dtype is at least."""
    if dtype.startswith("float"):
        return literal(-np.inf, dtype)
    return literal(False if dtype == "bool" else integer_range(dtype)[0], dtype)


def highest(dtype: str) -> Scalar:
    """What every value of the dtype is at most."""
    if dtype.startswith("float"):
        return literal(np.inf, dtype)
    return literal(True if dtype == "bool" else integer_range(dtype)[1], dtype)


def reduce_axes(
    builder: LirBuilder,
    shape: Sequence[int],
    axes: Sequence[int],
    reduction: Reduction,
    value: Value,
    *,
    keepdims: bool,
) -> TensorView:
    """One block that combines ``value`` over ``axes``.

    Args:
        builder: of the function.
        shape: of what is reduced.
        axes: positions that are reduced, ascending.
        reduction: how values are combined.
        value: of the indices into ``shape``.
        keepdims: reduced axes stay, with size 1.
    """
    names = AXIS_NAMES[: len(shape)]
    kept = [k for k in range(len(shape)) if keepdims or k not in axes]
    # A kept axis of size 1 needs another name than the loop that reduces it.
    spare = AXIS_NAMES[len(shape) :]
    loops = [spare[n] if k in axes else names[k] for n, k in enumerate(kept)]
    extents = [1 if k in axes else shape[k] for k in kept]

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        by_axis = dict(zip(kept, at))
        by_axis.update(zip(axes, r))
        return value(tuple(by_axis[k] for k in range(len(shape))))

    raxes = [(names[k], shape[k]) for k in axes]
    return builder.reduce(extents, reduction, raxes, body, names=loops)


def total_dtype(dtype: str) -> str:
    """Where floats of ``dtype`` are added: float16 in float32."""
    return "float32" if dtype == "float16" else dtype


def exact_sum_dtype(dtype: str, terms: int) -> str:
    """The narrowest of int32, int64 that holds any sum of so many integers of ``dtype``."""
    low, high = integer_range(dtype)
    return "int32" if max(-low, high) * max(terms, 1) < 1 << 31 else "int64"
