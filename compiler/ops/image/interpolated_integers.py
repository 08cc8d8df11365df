"""image.mix: sums of neighbours with fixed weights, of interpolation and uneven average windows.

Along each axis, with D the common denominator of the weights (256 where it is larger):

    out[o] = sum_t x[places[o, t]] * weights[o, t]        weights = round(D * weight), scale / D

The rounded weights of each output still sum to D, so an even surface stays even. The products and
sums are exact; the one rounding happens in the requantization that follows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, describe
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import (
    Types,
    check_integer_dtype,
    integer_tensor,
    tensor_of_rank,
)
from compiler.ops.image.resampling import COORDINATES, Interpolation, mixing_weights, taps_of
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.layout import FConvertLayout, following
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import QRealizeIntExpr, integers, storage_dtype
from compiler.ops.rules.requantize import to_scalar
from compiler.qtypes.context import QuantizeContext

Array = NDArray[np.float64]
Weights = tuple[int, Array]
"""An axis of the data and the matrix (out, size) that is applied along it; rows sum to 1."""

LARGEST_DENOMINATOR = 256
MIX: Final = "image.mix"
Taps = tuple[int, NDArray[np.int64], NDArray[np.int64]]
"""An axis, and the places and weights of each of its results."""


class MixAttrs(OpAttrs):
    """Axes that are mixed one after the other, and the dtype of the sums.

    Attributes:
        picked_first: all neighbours are picked before any is weighted.
    """

    axes: tuple[int, ...] = ()
    dtype: str = "int32"
    picked_first: bool = False


@define_op(
    MIX,
    arg_names=("data", "places", "weights", "more_places", "more_weights"),
    optional=2,
    attrs_type=MixAttrs,
    pattern=OpPattern.OPAQUE,
)
def mix(types: Types, attrs: MixAttrs) -> Type:
    """Return a shape with as many elements along each axis as it has places.

    Raises:
        TypeInferenceError: the data are no integers, or places and weights are not (out, taps) with
            a tap for each axis.
    """
    data = integer_tensor(MIX, types, 0, "data")
    check_integer_dtype(MIX, attrs.dtype)
    shape = list(data.shape)
    count = len(attrs.axes)
    if len(types) != 1 + 2 * count:
        raise TypeInferenceError(f"{MIX}: places and weights of {count} axes are needed")
    for number, axis in enumerate(attrs.axes):
        places = tensor_of_rank(MIX, types, 1 + 2 * number, "places", 2)
        weights = TensorType(places.shape, attrs.dtype)
        legal = 0 <= axis < len(shape) and places.dtype == "int64" and places.shape[1] != 0
        if not legal or types[2 + 2 * number] != weights:
            raise TypeInferenceError(
                f"{MIX}: axis {axis} has places {places} and weights {types[2 + 2 * number]}",
                fix=f"places are int64 and weights {weights}",
            )
        shape[axis] = places.shape[0]
    return TensorType(tuple(shape), attrs.dtype)


@FNumpyCompute.register(mix)
def mix_numpy(attrs: MixAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The sums along one axis after the other."""
    found = args[0].astype(attrs.dtype)
    for axis, places, weights in zip(attrs.axes, args[1::2], args[2::2]):
        picked = found.take(places, axis, mode="clip")
        lying = weights.reshape(*weights.shape, *(1,) * (found.ndim - 1 - axis))
        found = (picked * lying).sum(axis=axis + 1, dtype=attrs.dtype)
    return [found]


@FBody.register(mix)
def mix_body(step: Step, words: Words) -> Value | None:
    """Sums of picked rows, each times its weights; None where these are computed."""
    known = [arg.data for arg in step.args[1:] if arg.data is not None]
    if len(known) + 1 < len(step.args):
        return None
    axes: list[Taps] = list(zip(step.attrs.axes, known[::2], known[1::2]))
    mixed = step.args[0]
    dtype = step.attrs.dtype
    for each in [axes] if step.attrs.picked_first else [[one] for one in axes]:
        mixed = _along(mixed, each, dtype, words)
    return mixed


FConvertLayout.register(mix)(
    following(lambda attrs, order: {"axes": tuple(map(order.index, attrs.axes))})
)


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
    taps: list[Expr] = []
    for _, matrix in weights:
        denominator = common_denominator(matrix)
        places, factors = taps_of(whole_weights(matrix, denominator))
        taps += Constant(places.astype(np.int64)), Constant(factors.astype(acc))
        scale = scale.over(denominator)
    # Rows are picked while they are narrow, where that is cheap.
    mixed: Expr = data.in_dtype(narrow)
    if weights:
        axes = tuple(axis for axis, _ in weights)
        early = ctx.qconfig.form.stores_values
        mixed = op_call(MIX, mixed, *taps, axes=axes, dtype=acc, picked_first=early)
    result = integers(mixed, scale, acc if weights else narrow, ctx.bounds_of)
    if not result.fits(acc):
        what = f"{describe(ref_call)} runs in float: its sums do not fit {acc}"
        ctx.report.diagnostics.append(what)
        return None
    return result


def mixed_scale(scale: DomScale | None, weights: tuple[Weights, ...]) -> DomScale | None:
    """The FQDomScale answer for data of this scale."""
    for _, matrix in weights:
        if scale is None:
            scale = None
        else:
            scale = scale.over(common_denominator(matrix))
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


def matrix_of(size: int, places: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.int64]:
    """The matrix (out, size) of places and weights."""
    matrix = np.zeros((len(places), size), np.int64)
    np.add.at(matrix, (np.arange(len(places))[:, None], places), weights)
    return matrix


def coordinates_of(matrices: Collection[NDArray[np.int64]]) -> str | None:
    """The coordinates that a linear interpolation has these weights with; None where it is none."""
    for coordinates in COORDINATES:
        how = Interpolation("linear", coordinates, "")
        if all(
            np.array_equal(whole_weights(mixing_weights(size, out, how), held[0].sum()), held)
            for held in matrices
            for out, size in [held.shape]
        ):
            return coordinates
    return None


def _along(data: Value, axes: Sequence[Taps], dtype: str, words: Words) -> Value:
    """sum_t take(data, places_t) * weights_t along one axis; of several axes, what is picked along
    the last one is mixed along the others before it is weighted."""
    *others, (axis, places, weights) = axes
    lying = [1] * len(data.type.shape)
    lying[axis] = -1
    total: Value | None = None
    for index, factor in zip(places.T, weights.T):
        picked = words.take(data, index, axis)
        if others:
            picked = _along(picked, others, dtype, words)
        else:
            picked = words.cast(picked, dtype)
        if (factor != 1).any():
            picked = words.multiply(picked, words.constant(factor.reshape(lying), dtype))
        total = picked if total is None else words.add(total, picked)
    assert total is not None
    return total
