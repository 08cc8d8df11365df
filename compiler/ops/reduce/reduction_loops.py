"""Loops of reductions over axes of one tensor, shared by the operators of this folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.expr import Call
from compiler.ir.ty import integer_range
from compiler.lir.builder import AXIS_NAMES, LirBuilder, Reduction, TensorView
from compiler.lir.nodes import Combiner
from compiler.lir.scalars import Cast, Scalar, literal
from compiler.ops.reduce.axes import ReduceAttrs, reduced_axes
from compiler.ops.rules.lower import Lowered, LowerRule, OutTypes, Views

Value = Callable[[tuple[Scalar, ...]], Scalar]


def lowest(dtype: str) -> Scalar:
    """Return the smallest value of the dtype."""
    if dtype.startswith("float"):
        return literal(-np.inf, dtype)
    return literal(False if dtype == "bool" else integer_range(dtype)[0], dtype)


def highest(dtype: str) -> Scalar:
    """Return the largest value of the dtype."""
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


Combination = Callable[[str, int], tuple[str, Reduction]]
"""``combination(dtype of the data, terms) -> (dtype of the work, how values are combined)``."""


def lowered_reduction(combination: Combination) -> LowerRule:
    """The rule of an operator with ``ReduceAttrs``: one reduction; without axes the data."""

    def lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        (data,), attrs = inputs, ReduceAttrs.of(call)
        axes = reduced_axes("reduction", len(data.shape), attrs.axis, attrs.exclude)
        if not axes:
            return [data]
        work, how = combination(data.dtype, math.prod(data.shape[k] for k in axes))
        held = data.cast(work)
        return [reduce_axes(b, data.shape, axes, how, held.at, keepdims=attrs.keepdims)]

    return lower


def accumulated(combiner: Combiner, first: int) -> Combination:
    """Combined in the dtype of the data; float16 in float32."""

    def combination(dtype: str, terms: int) -> tuple[str, Reduction]:
        work = total_dtype(dtype)
        narrow = None if work == dtype else lambda total, at: Cast(dtype, total)
        return work, Reduction(combiner, literal(first, work), post=narrow)

    return combination


def total_dtype(dtype: str) -> str:
    """Return the dtype in which floats of ``dtype`` are added: float16 in float32."""
    if dtype == "float16":
        return "float32"
    return dtype


def exact_sum_dtype(dtype: str, terms: int) -> str:
    """The narrowest of int32, int64 that holds any sum of so many integers of ``dtype``."""
    low, high = integer_range(dtype)
    if max(-low, high) * max(terms, 1) < 1 << 31:
        return "int32"
    return "int64"
