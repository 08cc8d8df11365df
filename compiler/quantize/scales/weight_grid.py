"""Ranges of weights that were quantized before: their own grid, found in the values.

    w = q * s with whole |q| <= 127      →  S = s * 2^(bits - 1), which gives the scale s back

A model quantized elsewhere holds its weights as integers times a scale; folded into floats they
still lie on that grid. The step is the largest magnitude over a whole number; which one is not
known, so the finest step that the bits hold is taken: tools make the largest weight 127. Where all
rows lie on a grid of a few bits, as of int4 and int2 weights, that is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rounding q * s to float32 moves w / s by this share at most, s being rounded itself.
_TOLERANCE = 2.0**-21
_ULPS = 2
_FEW_BITS = (2, 4, 5)
"""Bits of a grid for weights of 2 and 4 bits; with a zero point inside, 4 bits reach as far as
5."""
_WIDE = 16
_FIRST = 8
"""Values of a row that are tried first."""
_LEAST_TAPS = 4
"""Least number of taps of a row, on average: fewer lie on a grid by chance."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnGrid:
    """Grid of the weights of a pre-quantized model.

    Attributes:
        range_s: S for ``nbit`` bits, as of ``range_on_grid``.
        low, high: ends of the integers.
        exact: the integers are those of the model, else the weights are rounded again.
    """

    range_s: NDArray[np.float32]
    nbit: int
    low: int
    high: int
    exact: bool


def channel_rows(values: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """(channels, elements of a channel); one row for all where ``axis`` is None."""
    if axis is None:
        return values.reshape(1, -1)
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def range_on_few_levels(
    weight: NDArray[np.float32], nbit: int, axis: int | None
) -> NDArray[np.float32] | None:
    """Return the range as ``range_on_grid``, where all weights lie on grids of the same few
    bits."""
    rows = channel_rows(weight, axis)
    some = np.abs(rows[0, : 1 << _FEW_BITS[-1]])
    if rows.shape[1] < _LEAST_TAPS or len(np.unique(some)) > 1 << (_FEW_BITS[-1] - 1):
        return None
    for few in (bits for bits in _FEW_BITS if bits < nbit):
        found = _ranges(rows, 1 << (few - 1), nbit, one_more=True)
        if found is not None:
            if axis is not None:
                return found
            return np.asarray(found[0])
    return None


def range_on_grid(
    weight: NDArray[np.float32], nbit: int, axis: int | None
) -> NDArray[np.float32] | None:
    """S for the scales that make every weight a whole number; None where there are none.

    Args:
        weight: float32.
        nbit: bits that the whole numbers must fit in.
        axis: of the channels, which may have a step each; None for one step.

    Returns:
        float32, rank 0, or one value per channel.
    """
    levels = 1 << (nbit - 1)
    whole = _ranges(weight.reshape(1, -1), levels, nbit)
    if axis is None:
        if whole is None:
            return None
        return np.asarray(whole[0])
    channels = channel_rows(weight, axis)
    if whole is not None:
        return np.full(len(channels), whole[0], np.float32)
    return _ranges(channels, levels, nbit)


def range_on_wide_grid(weight: NDArray[np.float32], axis: int | None) -> OwnGrid | None:
    """The grid of at most 16 bits that holds the weights: such as of int8 down to -128, of bytes
    with a zero point that is not in their middle, and of int16; None where there is none."""
    steps: list[np.float32] = []
    rows = channel_rows(weight, axis)
    for row in rows:
        tried = (_step(row, 1 << (nbit - 1), True, (1 << (nbit - 2)) - 1) for nbit in range(9, 17))
        step = next((one for one in (_step(row, 128, True), *tried) if one is not None), None)
        if step is None:
            return None
        steps.append(step)
    held = np.asarray(steps, np.float32)
    whole = np.rint(rows / held[:, None].astype(np.float64))
    low = int(whole.min(initial=0))
    high = int(whole.max(initial=0))
    ranges = held * np.float32(1 << (_WIDE - 1))
    return OwnGrid(ranges if axis is not None else ranges[0], _WIDE, low, high, exact=True)


def _ranges(
    rows: NDArray[np.float32], levels: int, nbit: int, one_more: bool = False
) -> NDArray[Any] | None:
    """S of every row, float32; None where a row has no step, or a range leaves float32."""
    steps: list[np.float32] = []
    for row in rows:
        with np.errstate(over="ignore"):  # what leaves float32 is equal to no weight
            step = _step(row, levels, one_more)
        if step is None:
            return None
        steps.append(step)
    found = np.asarray(steps, np.float64) * (1 << (nbit - 1))
    if found.max(initial=0) > np.finfo(np.float32).max:
        return None
    return found.astype(np.float32)


def _step(
    values: NDArray[np.float32], levels: int, one_more: bool = False, above: int = 0
) -> np.float32 | None:
    """The step of the grid that all values lie on; 1 / levels where all are 0.

    Args:
        one_more: the magnitude may be ``levels`` on one side, as in two's complement.
        above: the largest magnitude has more steps than these.
    """
    wide = np.abs(values.astype(np.float64))
    largest = float(wide.max(initial=0.0))
    if largest == 0:
        return np.float32(1 / levels)
    distinct = np.unique(wide)
    if len(distinct) > levels + 1:
        return None
    one_more = one_more and not (largest == values.max() == -values.min())
    counts = np.arange(levels - 1 + one_more, above, -1)
    some = distinct[:: -(-len(distinct) // _FIRST)]  # refute nearly every count at once
    for count in counts[whole_units(some[:, None] * (counts / largest)).all(axis=0)]:
        units = distinct * (count / largest)
        if whole_units(units).all():
            step = np.float32(largest / count)
            return _exact(step, distinct.astype(np.float32), np.rint(units))
    return None


def whole_units(units: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which magnitudes are whole numbers, but for rounding to float32."""
    whole = np.rint(units)
    return np.asarray(np.abs(units - whole) <= _TOLERANCE * np.maximum(whole, 1))


def _exact(
    step: np.float32, distinct: NDArray[np.float32], whole: NDArray[np.float64]
) -> np.float32:
    """The float32 near ``step`` whose products are the values to the last bit, if there is one."""
    up = down = step
    for _ in range(_ULPS + 1):
        for tried in (up, down):
            if np.array_equal(whole.astype(np.float32) * tried, distinct):
                return tried
        up = np.nextafter(up, np.float32(np.inf))
        down = np.nextafter(down, np.float32(0))
    return step
