"""Normalised values as TFLM's kernels compute them: MEAN, QUANTIZE, GATHER, arithmetic of int32.

    x   = data * 2^6, or half of data of 16 bits           int16
    d   = x - mean(x)
    v   = mean(d d / 2^k)                                  15 bits, and 4 more behind the point
    y   = d * root[place(v)]                               root[p] = 1 / sqrt(value(p) + eps)
    out = y * root'[place(mean(y y) + eps root^2)]         what v has lost of small rows comes back

``place`` grows with v as a float's bits do: steps of 1/4, 2, 16 and 128, at least 32 of each in
front of the next. So a root is within 0.8 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Constant, Expr
from compiler.ops.op_call import op_call
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.fixed_point import multiplier_and_shift, requantized
from compiler.ops.rules.integer_calls import (
    add,
    cast,
    clip,
    left_shift,
    multiply,
    scalar,
    subtract,
    worth,
)
from compiler.ops.rules.realize import QRealizeIntExpr

MOST_SUMMANDS: Final = 1 << 16
"""Values of 15 bits whose sum int32 holds."""
_FINER: Final = 6
_FINE: Final = 4
_LEVELS: Final = ((_FINE, -2), (_FINE, 1), (0, 4), (0, 7))
"""Bits behind the point of the mean square that a level reads, and log2 of its steps."""
_NEAR_ONE: Final = _LEVELS[:2]
_BEGINS: Final = 32
_STEPS: Final = 256
_BITS: Final = 15

_Reals = NDArray[np.float64]


def tflm_standardize(
    data: QRealizeIntExpr, axis: int, count: int, epsilon: float, centred: bool, out_bits: int
) -> Expr:
    """The normalised data in ``out_bits`` fractional bits, int32 of 16 bits.

    Args:
        data: of 16 bits, 0 stands for 0.
        axis: of the sums, of ``count`` elements, at most MOST_SUMMANDS.
        epsilon: added to the mean square.
        centred: take the mean away.
        out_bits: so many that int16 holds the result.
    """
    finer = _FINER if max(data.high - data.low, data.bound) < _STEPS else -1
    step = math.ldexp(float(data.dom_scale.data), -finer)
    wide = data.in_dtype("int32")
    if finer > 0:
        x: Expr = cast(left_shift(wide, scalar(finer, "int32")), "int16")
    else:
        x = _scaled(wide, finer, step)
    d: Expr = cast(x, "int32")
    reach = data.bound
    if centred:
        d = subtract(d, cast(_mean(x, axis, count, step), "int32"))
        reach = data.high - data.low
    fewer = max(math.ceil(math.ldexp(reach, finer)).bit_length() * 2 - _BITS, 0)
    worth = step * math.ldexp(step, fewer)
    squares = _scaled(multiply(d, d), -fewer, worth)
    means = {bits: _mean(squares, axis, count, worth, bits) for bits in (0, _FINE)}
    place = _place({b: cast(mean, "int32") for b, mean in means.items()}, _LEVELS, worth)
    roots = 1 / np.sqrt(_mean_squares(_LEVELS) * worth + epsilon)
    y = cast(_times(d, place, roots * step, out_bits), "int32")
    unit = 2.0 ** (_BITS - 2 * out_bits)
    squares = _scaled(multiply(y, y), -_BITS, unit)
    rest = _taken(np.rint(epsilon * roots**2 / unit * 2**_FINE), place)
    mean = cast(_mean(squares, axis, count, unit, _FINE), "int32")
    place = _place({_FINE: add(mean, rest)}, _NEAR_ONE, unit)
    again = 1 / np.sqrt(_mean_squares(_NEAR_ONE) * unit)
    return cast(_times(y, place, again * 2.0**-out_bits, out_bits), "int32")


def _place(means: Mapping[int, Expr], levels: Sequence[tuple[int, int]], worth: float) -> Expr:
    places: list[Expr] = []
    for bits, log_step in levels:
        low = _BEGINS if places else 0
        moved = _rescale(means[bits], -bits - log_step, math.ldexp(worth, log_step))
        places.append(cast(cast(clip(moved, low, _STEPS - 1), "uint8"), "int32"))
    return add(reduce(add, places), scalar((1 - len(places)) * _BEGINS, "int32"))


def _mean_squares(levels: Sequence[tuple[int, int]]) -> _Reals:
    """What every place stands for, in steps of the mean square."""
    steps = np.arange(_STEPS, dtype=np.float64)
    steps[0] = 1 / 4  # below half a step
    parts = [
        np.ldexp(steps[_BEGINS + 1 if level else 0 :], log_step)
        for level, (_, log_step) in enumerate(levels)
    ]
    return np.concatenate(parts)


def _times(data: Expr, place: Expr, roots: _Reals, out_bits: int) -> Expr:
    """``data`` times the root at a place, in int16 of ``out_bits`` fractional bits."""
    bits = _BITS - math.frexp(float(roots.max()))[1]
    product = multiply(data, _taken(np.rint(np.ldexp(roots, bits)), place))
    return _scaled(product, out_bits - bits, 2.0**-out_bits)


def _taken(entries: _Reals, place: Expr) -> Expr:
    table = np.minimum(entries, (1 << _BITS) - 1).astype(np.int16)
    return cast(op_call("take", Constant(table), place, axis=0), "int32")


def _rescale(data: Expr, log_factor: int, scale: float) -> Expr:
    factor = multiplier_and_shift(np.asarray(2.0**log_factor))
    before, behind = (DomScale(as_scale(math.ldexp(scale, n))) for n in (log_factor, 0))
    return requantized(data, *factor, None, 0, "tflm", "int32", (before, behind))


def _scaled(data: Expr, log_factor: int, scale: float) -> Expr:
    return cast(clip(_rescale(data, log_factor, scale), -(1 << 15), (1 << 15) - 1), "int16")


def _mean(data: Expr, axis: int, count: int, scale: float, bits: int = 0) -> Expr:
    """The mean of int16 with more bits behind the point; its factor is cut off as TFLM's is."""
    total = op_call("sum", cast(data, "int32"), axis=(axis,), keepdims=True)
    one, shift = (int(part) for part in multiplier_and_shift(np.asarray(2.0**bits)))
    more = count.bit_length() - 1
    factor = np.array((one << more) // count)
    scaled = requantized(total, factor, np.array(shift - more), None, 0, "tflm", "int32")
    scaled = worth(scaled, math.ldexp(scale, -bits))
    return cast(clip(scaled, -(1 << 15), (1 << 15) - 1), "int16")
