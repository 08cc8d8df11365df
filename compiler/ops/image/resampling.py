"""Separable resampling of images: nearest by index, linear and cubic by weight matrices.
Loops of resampling: linear and cubic are sums over the taps of a place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.core.words import Words, shape_of
from compiler.errors import TypeInferenceError, legal_names
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_float
from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Scalar, literal
from compiler.ops.nn.product_loops import accumulator
from compiler.ops.number_format import Array

METHODS = ("nearest_neighbor", "linear", "bilinear", "cubic", "bicubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
ROUNDINGS = ("", "round", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def check_method(op: str, method: str, dtype: str) -> None:
    """Refuse unknown methods, and interpolation of integers.

    Raises:
        TypeInferenceError: see above.
    """
    if method not in METHODS:
        raise TypeInferenceError(
            f"{op}: method {method!r} is unknown", fix=legal_names(method, METHODS)
        )
    if method != "nearest_neighbor" and not is_float(dtype):
        raise TypeInferenceError(f"{op}: method {method!r} needs a float dtype, not {dtype}")


def exact_positions(size: int, out: int, coordinates: str) -> tuple[Array, int]:
    """Return the place of output elements 0 … out-1 in the input, in input elements: int64
    numerators, and their denominator. Floats would miss whole and half positions, where the nearest
    one turns."""
    at = np.arange(out, dtype=np.int64)
    if coordinates == "align_corners":
        return at * (size - 1), max(out - 1, 1)
    if coordinates == "asymmetric":
        return at * size, out
    if coordinates == "pytorch_half_pixel" and out == 1:
        return at, 1
    centre = (2 * at + 1) * size
    return (centre if coordinates == "tf_half_pixel_for_nn" else centre - out), 2 * out


def positions(size: int, out: int, coordinates: str) -> Array:
    """``exact_positions`` in float64."""
    numerators, denominator = exact_positions(size, out, coordinates)
    return np.asarray(numerators / denominator)


def nearest(size: int, out: int, coordinates: str, rounding: str) -> Array:
    """Index of the input element each output element copies.

    Rounding "" is Relay's: "round" with aligned corners, else "floor".
    Source: Relay v0.10 topi/image/resize.py.
    """
    at, denominator = exact_positions(size, out, coordinates)
    rounding = rounding or ("round" if coordinates == "align_corners" else "floor")
    if rounding == "floor":
        index = at // denominator
    elif rounding == "ceil":
        index = -(-at // denominator)
    elif rounding in ("round", "round_prefer_ceil"):
        index = (2 * at + denominator) // (2 * denominator)
    else:
        index = -((denominator - 2 * at) // (2 * denominator))
    return np.asarray(np.clip(index, 0, size - 1))


def linear_weights(size: int, out: int, coordinates: str) -> Array:
    """Matrix (out, size) of linear interpolation; beyond the border the border is repeated."""
    at = np.clip(positions(size, out, coordinates), 0, size - 1)
    low = np.minimum(np.floor(at).astype(np.int64), max(size - 2, 0))
    part = at - low
    weights = np.zeros((out, size))
    rows = np.arange(out)
    np.add.at(weights, (rows, low), 1 - part)
    np.add.at(weights, (rows, np.minimum(low + 1, size - 1)), part)
    return weights


def cubic(distance: Array, alpha: float) -> Array:
    """Keys' kernel with parameter ``alpha``: the weight of an element at a distance.

    Source: R. Keys, "Cubic convolution interpolation for digital image processing", 1981.
    """
    d = distance
    near = ((alpha + 2) * d - (alpha + 3)) * d * d + 1
    far = ((alpha * d - 5 * alpha) * d + 8 * alpha) * d - 4 * alpha
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def cubic_weights(size: int, out: int, coordinates: str, alpha: float) -> Array:
    """Matrix (out, size) of cubic convolution with parameter ``alpha``; the border is repeated."""
    at = positions(size, out, coordinates)
    low = np.floor(at).astype(np.int64)
    part = at - low
    weights = np.zeros((out, size))
    rows = np.arange(out)
    for offset in range(-1, 3):
        value = cubic(np.abs(part - offset), alpha)
        np.add.at(weights, (rows, np.clip(low + offset, 0, size - 1)), value)
    return weights


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Method by which elements of the result are computed.

    Attributes:
        method: "nearest_neighbor", "linear", "bilinear", "cubic" or "bicubic".
        coordinates: coordinate_transformation_mode of image.resize2d.
        rounding: rounding_method of image.resize2d, for the nearest neighbour.
        alpha: of cubic methods.
    """

    method: str
    coordinates: str
    rounding: str
    alpha: float = -0.5


def mixing_weights(size: int, out: int, how: Interpolation) -> Array:
    """Matrix (out, size) of a linear or cubic method."""
    if how.method in ("cubic", "bicubic"):
        return cubic_weights(size, out, how.coordinates, how.alpha)
    return linear_weights(size, out, how.coordinates)


def taps_of(weights: Array) -> tuple[Array, Array]:
    """(places, weights) of each row of a matrix (out, size) without its zeros, in the order of the
    data; rows with fewer have zeros behind them."""
    taps = max(int((weights != 0).sum(axis=1).max(initial=0)), 1)
    places = np.argsort(weights == 0, axis=1, kind="stable")[:, :taps]
    return places, np.take_along_axis(weights, places, axis=1)


def resample(data: Array, size: tuple[int, int], how: Interpolation) -> Array:
    """(N, C, H, W) to the height and width ``size``, in the dtype of the data."""
    h, w = data.shape[2:]
    if how.method == "nearest_neighbor":
        rows = nearest(h, size[0], how.coordinates, how.rounding)
        columns = nearest(w, size[1], how.coordinates, how.rounding)
        return data[:, :, rows[:, None], columns[None, :]]
    work = np.float64 if data.dtype == np.float64 else np.float32
    vertical = mixing_weights(h, size[0], how)
    horizontal = mixing_weights(w, size[1], how)
    rows_done = np.matmul(vertical.astype(work), data.astype(work, copy=False))
    result = np.matmul(rows_done, horizontal.T.astype(work))
    return np.asarray(result).astype(data.dtype, copy=False)


def nearest_body(step: Step, words: Words, layout: str, how: Interpolation) -> Value | None:
    """The nearest elements of height and width; None for other methods."""
    if how.method != "nearest_neighbor":
        return None
    found = step.args[0]
    for letter in "HW":
        axis = layout.index(letter)
        size = shape_of(found)[axis]
        out = shape_of(step.results[0])[axis]
        places = nearest(size, out, how.coordinates, how.rounding)
        if size != out or (places != np.arange(out)).any():
            found = words.take(found, places, axis)
    return found


# ---- resampling_loops --------------------------------------------------------------------------


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
        view = _weighted(builder, view, axis, mixing_weights(view.shape[axis], wanted, how))
    return view.cast(data.dtype)


def _weighted(builder: LirBuilder, data: TensorView, axis: int, weights: Array) -> TensorView:
    """Sums along the axis with the (count, length) weights, zeros left out."""
    order, held = taps_of(weights)
    count, taps = order.shape
    places = builder.constant(order.astype(np.int32))
    factors = builder.constant(held.astype(data.dtype))
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        tap = (at[axis], r[0])
        found = list(at)
        found[axis] = index.clamped(places.at(tap), weights.shape[1])
        return Bin("*", data.at(found), factors.at(tap))

    return builder.reduce(shape, Reduction("sum", literal(0, data.dtype)), [("r", taps)], body)
