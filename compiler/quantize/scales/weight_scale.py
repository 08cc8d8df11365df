"""The weight_scale table: the range S of a constant tensor, over all of it or channel by channel.

The quantized weight is round(w / (S / 2^(bits - 1))), clipped to ±(2^(bits - 1) - 1). To add
a mode: a function under ``@weight_scales.register(name)``, its name in qtypes/config_checks.py.
Source: Relay v0.10 quantize/_calibrate.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.lru_cache import LRUCache
from compiler.named_table import NamedTable
from compiler.ops.rules.dom_scale import SMALLEST_RANGE
from compiler.qtypes.errors import ConfigValueError
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.scales.weight_grid import channel_rows

Rows = NDArray[np.float32]
"""(channels, elements of a channel); one row for a whole tensor."""

WeightScale = Callable[[Rows, NDArray[np.float32], int], NDArray[np.float32]]
"""``mode(rows, largest, nbit) -> S`` with largest = max|w| of each row; one S per row."""

weight_scales: NamedTable[WeightScale] = NamedTable("weight_scale", ConfigValueError)


@weight_scales.register("max")
def max_scale(rows: Rows, largest: NDArray[np.float32], nbit: int) -> NDArray[np.float32]:
    """The largest magnitude. It is cut by one step: the levels end at 127/128 of the range."""
    return largest


@weight_scales.register("power2")
def power2_scale(rows: Rows, largest: NDArray[np.float32], nbit: int) -> NDArray[np.float32]:
    """The smallest power of two that is not below the largest magnitude; 1 for all zeros."""
    fraction, exponent = np.frexp(largest.astype(np.float64))
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)
    ranges = np.where(largest == 0, 1.0, np.ldexp(1.0, exponent))
    return np.asarray(ranges, np.float32)


@weight_scales.register("pairs")
def pairs_scale(rows: Rows, largest: NDArray[np.float32], nbit: int) -> NDArray[np.float32]:
    """ "mse", and 8-bit levels of two neighbours with one sign sum to at most 128.

    So the products of two bytes with them fit in 16 bits: ``vpmaddubsw`` of AVX2 does not saturate.
    """
    chosen = mse_scale(rows, largest, nbit)
    if nbit != 8:
        return chosen
    rows = np.pad(rows, [(0, 0), (0, rows.shape[1] % 2)])  # kernels pad an odd row
    both = [np.maximum(rows * sign, 0).reshape(len(rows), -1, 2).sum(axis=2) for sign in (1, -1)]
    sums = np.maximum(*both).max(axis=1, initial=0)
    # Rounding adds less than one to a sum of 127.
    return np.asarray(np.maximum(chosen, sums * np.float32(128 / 127)), np.float32)


_COARSE = np.linspace(0.3, 1.0, 15)
_FINE = np.linspace(-0.04, 0.04, 9)


@weight_scales.register("mse")
def mse_scale(rows: Rows, largest: NDArray[np.float32], nbit: int) -> NDArray[np.float32]:
    """The clipping threshold with the least squared error, in hundredths of the widest range.

    The widest range puts max|w| on the last level, 2^(bits - 1) - 1. Fifteen coarse steps from 30 %
    to 100 % of it, then single hundredths around the best of each row. What was found for the same
    weights last is remembered: most candidates of a search share them.
    """
    rows = np.ascontiguousarray(rows)
    content = hashlib.sha256(rows.data)
    content.update(largest.tobytes())
    key = content.digest(), rows.shape, nbit
    return _RANGES.get(key, lambda: _least_mse(rows, largest, nbit)).copy()


_RANGES: Final[LRUCache[NDArray[np.float32]]] = LRUCache(1024)


def _least_mse(rows: Rows, largest: NDArray[np.float32], nbit: int) -> NDArray[np.float32]:
    magnitudes = np.abs(rows)
    levels = 2.0 ** (nbit - 1)
    widest = (largest * (levels / (levels - 1))).astype(np.float32)
    # The range of mode "max" is among the candidates, so that this mode never errs more.
    coarse = np.sort(np.append(_COARSE, 1 - 1 / levels))
    center = _least_error(magnitudes, widest, np.ones(len(rows)), coarse, nbit)
    center = _least_error(magnitudes, widest, center, _FINE, nbit, around=True)
    return np.asarray(widest * center, np.float32)


def _least_error(
    magnitudes: Rows,
    widest: NDArray[np.float32],
    center: NDArray[Any],
    steps: NDArray[Any],
    nbit: int,
    around: bool = False,
) -> NDArray[Any]:
    """Fraction of ``widest`` with the least error per row; larger fractions win ties."""
    levels = np.float32(2 ** (nbit - 1) - 1)
    best = np.full(len(magnitudes), np.inf)
    chosen = center.copy()
    lost = np.empty_like(magnitudes)
    kernels = choose_kernels()
    for step in steps[::-1]:
        if around:
            fraction = np.minimum(center + step, 1.0)
        else:
            fraction = np.full(len(center), step)
        scale = (widest * fraction / 2 ** (nbit - 1)).astype(np.float32)
        scale[scale == 0] = 1.0
        kernels.grid_errors(magnitudes, scale, float(levels), lost)
        error = np.einsum("ck,ck->c", lost, lost)
        better = error < best
        best[better] = error[better]
        chosen[better] = fraction[better]
    return chosen


def weight_range(
    values: NDArray[np.float32],
    mode: str,
    nbit: int,
    axis: int | None = None,
    name: str = "weight",
    at_least: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Range S of a constant tensor.

    Args:
        values: the tensor, any shape.
        mode: of the weight_scale table.
        nbit: bits of the signed grid.
        axis: gives one S per index of this axis; None one for all.
        name: what messages call the tensor.
        at_least: the range is not smaller than this; rank 0, or one value per index of ``axis``.

    Returns:
        float32, rank 0, or rank 1 with ``axis``; always > 0: below SMALLEST_RANGE gives 1.

    Raises:
        CalibrationError: a value is not finite.
        ConfigValueError: unknown mode.
    """
    scale_of = weight_scales.require(mode)
    whole = np.asarray(values, np.float32)
    rows = channel_rows(whole, axis)
    if mode == "pairs" and axis is not None and whole.ndim > 2:
        # Neighbours are channels, as kernels read them.
        moved = np.moveaxis(whole, axis, 0)
        taps = moved.reshape(*moved.shape[:2], prod(moved.shape[2:]))
        rows = taps.swapaxes(1, 2).reshape(rows.shape)
    largest = np.zeros(len(rows), np.float32)
    if rows.shape[1]:
        largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    if not np.isfinite(largest).all():
        raise CalibrationError(
            f"{name} {tuple(whole.shape)} holds values that are not finite",
            fix="repair the model's weights",
        )
    floor = np.float32(0) if at_least is None else np.asarray(at_least, np.float32)
    ranges = np.maximum(scale_of(rows, np.maximum(largest, floor), nbit), floor)
    ranges = np.where(ranges < SMALLEST_RANGE, np.float32(1.0), ranges).astype(np.float32)
    if axis is not None:
        return ranges
    return np.asarray(ranges[0])
