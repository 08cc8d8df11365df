"""Loops of resampling: nearest by index, linear and cubic as sums over the taps of a place."""

from __future__ import annotations

import numpy as np

from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Scalar, literal
from compiler.ops.image.resampling import Interpolation, mixing_weights, nearest
from compiler.ops.nn.product_loops import accumulator
from compiler.ops.number_format import Array


def resample_loops(
    builder: LirBuilder,
    data: TensorView,
    layout: str,
    size: tuple[int, int],
    how: Interpolation,
) -> TensorView:
    """``compiler.ops.image.resampling.resample`` as loops, in any layout.

    Interpolation does one axis after the other, rows first.
    """
    view = data
    if how.method != "nearest_neighbor":
        view = data.cast(accumulator(data.dtype))
    for letter, wanted in zip("HW", size):
        axis = layout.index(letter)
        length = view.shape[axis]
        if how.method == "nearest_neighbor":
            places = nearest(length, wanted, how.coordinates, how.rounding)
            view = _picked(builder, view, axis, places)
            continue
        weights = mixing_weights(length, wanted, how.method, how.coordinates, how.alpha)
        view = _weighted(builder, view, axis, weights)
    return view.cast(data.dtype)


def _picked(builder: LirBuilder, data: TensorView, axis: int, places: Array) -> TensorView:
    """Element k along the axis is element places[k] of the data."""
    length, count = data.shape[axis], len(places)
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    # Positions that are a quotient need no table.
    whole = np.array_equal(places, np.arange(count) * length // max(count, 1))
    table = None if whole else builder.constant(places.astype(np.int32))

    def element(at: tuple[Scalar, ...]) -> Scalar:
        found = list(at)
        if table is None:
            found[axis] = index.floordiv(index.times(at[axis], length), count)
        else:
            found[axis] = index.clamped(table.at((at[axis],)), length)
        return data.at(found)

    return TensorView.of(shape, element)


def _weighted(builder: LirBuilder, data: TensorView, axis: int, weights: Array) -> TensorView:
    """Sums along the axis with the (count, length) weights, zeros left out."""
    count, length = weights.shape
    taps = max(int((weights != 0).sum(axis=1).max(initial=1)), 1)
    # The largest weights of every row, in the order of the elements they belong to.
    order = np.argsort(weights == 0, axis=1, kind="stable")[:, :taps]
    places = builder.constant(order.astype(np.int32))
    factors = builder.constant(np.take_along_axis(weights, order, axis=1).astype(data.dtype))
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        tap = (at[axis], r[0])
        found = list(at)
        found[axis] = index.clamped(places.at(tap), length)
        return Bin("*", data.at(found), factors.at(tap))

    return builder.reduce(shape, Reduction("sum", literal(0, data.dtype)), [("r", taps)], body)
