"""Integer rules of what mixes neighbours with fixed weights: interpolation, uneven average windows.

Along each axis, with D the common denominator of the weights (256 where it is larger):

    out[o] = sum_t take(x, index_t)[o] * round(D * weight_t[o])        scale / D

The rounded weights of each output still sum to D, so an even surface stays even. The products and
sums are exact; the one rounding happens in the requantization that follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Args, Call, Constant, Expr, describe
from compiler.ops.image.resampling import taps_of
from compiler.ops.op_call import op_call
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.integer_calls import add, multiply
from compiler.ops.rules.realize import QRealizeIntExpr, integers, storage_dtype
from compiler.ops.rules.requantize import to_scalar
from compiler.qtypes.context import QuantizeContext

Array = NDArray[np.float64]
Weights = tuple[int, Array]
"""An axis of the data and the matrix (out, size) that is applied along it; rows sum to 1."""

LARGEST_DENOMINATOR = 256


def realize_mixing(
    ref_call: Call, args: Args, weights: tuple[Weights, ...], ctx: QuantizeContext
) -> Expr | None:
    """The weights of one axis after the other; float where they are too many for 32 bits."""
    (data,) = args
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.args[0].tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    narrow = storage_dtype(data.low, data.high, ctx.qconfig) or data.dtype
    acc = ctx.qconfig.dtype_activation
    scale = data.scale
    # Rows are picked while they are narrow, where that is cheap.
    mixed: Expr = data.in_dtype(narrow)
    dtype = narrow
    for_tflm = ctx.qconfig.for_tflm
    wholes: list[tuple[int, NDArray[np.int64]]] = []
    for axis, matrix in weights:
        denominator = common_denominator(matrix)
        whole = whole_weights(matrix, denominator)
        wholes.append((axis, whole))
        scale = scale.over(denominator)
    # LiteRT files pick from narrow tensors only: every neighbour, before any is weighted.
    rounds = [wholes] if for_tflm else [[one] for one in wholes]
    for axes in rounds:
        mixed = _along(mixed, dtype, axes, len(shape), acc)
        dtype = acc
    result = integers(mixed, scale, dtype, ctx.bounds_of)
    if not result.fits(acc):
        what = f"{describe(ref_call)} runs in float: its sums do not fit {acc}"
        ctx.report.diagnostics.append(what)
        return None
    return result


def mixed_scale(scale: DomScale | None, weights: tuple[Weights, ...]) -> DomScale | None:
    """The FQDomScale answer for data of this scale."""
    for _, matrix in weights:
        scale = None if scale is None else scale.over(common_denominator(matrix))
    return scale


def common_denominator(matrix: Array) -> int:
    """The smallest D for which D times every weight is whole, or LARGEST_DENOMINATOR."""
    found = 1
    for weight in np.unique(matrix):
        fraction = Fraction(float(weight)).limit_denominator(LARGEST_DENOMINATOR)
        if abs(float(fraction) - weight) > 1e-9:
            return LARGEST_DENOMINATOR
        found = math.lcm(found, fraction.denominator)
        if found > LARGEST_DENOMINATOR:
            return LARGEST_DENOMINATOR
    return found


def whole_weights(matrix: Array, denominator: int) -> NDArray[np.int64]:
    """denominator * matrix in whole numbers; every row keeps its sum."""
    whole = np.rint(matrix * denominator).astype(np.int64)
    rows = np.arange(len(whole))
    # What rounding has lost or won goes to the largest weight of its row.
    whole[rows, matrix.argmax(axis=1)] += denominator - whole.sum(axis=1)
    return whole


def _along(
    data: Expr, dtype: str, axes: Sequence[tuple[int, NDArray[np.int64]]], rank: int, acc: str
) -> Expr:
    """sum_t take(data, index_t) * weight_t along one axis, in ``acc``; of several axes, what is
    picked along the last one is mixed along the others before it is weighted."""
    *others, (axis, whole) = axes
    places, factors = taps_of(whole)
    shape = [1] * rank
    shape[axis] = -1
    total: Expr | None = None
    for index, factor in zip(places.T, factors.T):
        picked: Expr = op_call("take", data, Constant(index.astype(np.int64)), axis=axis)
        if others:
            picked = _along(picked, dtype, others, rank, acc)
        elif dtype != acc:
            picked = op_call("cast", picked, dtype=acc)
        if (factor != 1).any():
            picked = multiply(picked, Constant(factor.astype(acc).reshape(shape)))
        total = picked if total is None else add(total, picked)
    assert total is not None
    return total
