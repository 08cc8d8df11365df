"""Loops of resampling: linear and cubic are sums over the taps of a place."""

from __future__ import annotations

import numpy as np

from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Scalar, literal
from compiler.ops.image.resampling import Interpolation, mixing_weights
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
    view = data.cast(accumulator(data.dtype))
    for letter, wanted in zip("HW", size):
        axis = layout.index(letter)
        weights = mixing_weights(view.shape[axis], wanted, how.method, how.coordinates, how.alpha)
        view = _weighted(builder, view, axis, weights)
    return view.cast(data.dtype)


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
