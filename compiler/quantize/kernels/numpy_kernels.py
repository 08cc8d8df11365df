"""Compute the tight loops of calibration and rounding in numpy, for machines without a C compiler
and as the oracle of the C ones (``native_kernels.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Number = TypeVar("Number", np.int16, np.float32)
Floating = NDArray[np.floating[Any]]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

UPPER_COUNTERS = 32768
"""Values that the upper 16 bits of a float32 pattern take once its sign is cleared."""

MOST_STEPS = 2896
"""The largest number of steps: its product with a difference of two is below 2^24."""
KeyTimes = tuple[NDArray[np.uint16], I32]
"""Keys, and how often each entry occurred; same shape."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_EPS = np.float32(0.0001)
# Values binned at a time: their intermediates stay in cache.
_BLOCK = 1 << 16
# Logarithms taken at a time: their operands stay in cache.
_TERMS = 8192
_TINY = 1e-300
_LEAST = np.finfo(np.float64).tiny
_SERIES = (*(1.0 / k for k in range(21, 2, -2)), 1.0)


def log_series(x: F64) -> F64:
    """Natural logarithm of positive normal numbers, bit for bit that of calibrate.c.

    x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh((m-1)/(m+1)) as a series whose
    remainder is below 1e-18. Only + - * / in one order, so that no libm decides the bits.
    """
    m, exponent = np.frexp(x)
    small = m < 0.7071067811865476
    m = np.where(small, m + m, m)
    e = exponent.astype(np.float64) - small
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    total = np.full_like(z, _SERIES[0])
    for coefficient in _SERIES[1:]:
        total = total * z + coefficient
    return e * 0.6931471805599453 + (s + s) * total


class Kernels:
    """Every implementation gives the same bits. Arrays are contiguous, 1-D unless said."""

    name = "numpy"

    def count_ranges(self, values: F32, counts: I64, keys: I32) -> None:
        """Add upper 16 bits of |values| to ``counts``; widen ``keys`` = (min, max) order keys."""
        if values.size == 0:
            return
        ordered = order_key(values)
        keys[0] = min(keys[0], ordered.min())
        keys[1] = max(keys[1], ordered.max())
        upper = (values.view(np.int32) & _MAGNITUDE) >> 16
        counts += np.bincount(upper, minlength=UPPER_COUNTERS)

    def histogram(self, values: F32, edges: F32, counts: I64) -> None:
        """counts[k] += values with edges[k] <= x < edges[k+1]; the last bin is closed.

        Values outside the edges are counted in the first or last bin.
        """
        bins = counts.size
        low = edges[0]
        width = float(edges[-1]) - float(edges[0])
        with np.errstate(over="ignore", divide="ignore"):
            inverse = np.float32(np.float64(bins) / width)
        # As in calibrate.c: only values this close to an edge are compared with it.
        margin = 5e-7 * bins if 1e-30 < edges[-1] < 1e38 else 1.0
        inner = edges[1:-1]
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            with np.errstate(over="ignore", invalid="ignore"):
                guess = np.clip((block - low) * inverse, 0.5, bins - 0.5)
                index = guess.astype(np.int32)
            guess -= index
            near = np.flatnonzero(~((guess > margin) & (guess < 1.0 - margin)))
            index[near] = np.searchsorted(inner, block[near], side="right")
            counts += np.bincount(index, minlength=bins)

    def collect_low(self, values: F32, buckets: I32) -> list[KeyTimes]:
        """Per bucket (sorted, at most 255): lower 16 bits of the |values| that fall into it.

        Entries may repeat a key, in any order; the sums of their times are what counts.
        """
        magnitude = values.view(np.int32) & _MAGNITUDE
        if buckets.size:
            magnitude = magnitude[magnitude >= buckets[0] << 16]
        upper = magnitude >> 16
        rows = [(magnitude[upper == bucket] & 0xFFFF).astype(np.uint16) for bucket in buckets]
        return [(row, np.ones(row.size, np.int32)) for row in rows]

    def divergences(self, hist: I64, prefix: I64, filled: I64, candidates: I32, levels: int) -> F32:
        """Float32 divergence of each KL candidate; ``kl_divergence.py`` lists the steps.

        ``prefix`` and ``filled`` are the exclusive prefix sums of ``hist`` and of ``hist != 0``.
        """
        results = [_divergence(hist, prefix, filled, int(i), levels) for i in candidates]
        return np.asarray(results, np.float32)

    def group_terms(
        self,
        prefix: I64,
        filled: I64,
        candidates: I32,
        levels: int,
        p_less: F64,
        q_less: F64,
    ) -> F64:
        """For neighbouring KL candidates, ascending: the sum of P' ln Q' over the filled bins of
        all groups but the first and the last, where P' = P - ``p_less`` and Q' = Q - ``q_less``.

        Groups of neighbouring candidates are equally wide and begin one bin earlier, so that
        they are slices of the prefix sums.
        """
        i = candidates.astype(np.int64)
        out = np.zeros(i.size)
        zero = filled.size // 2 - 1
        # Backwards, so that neighbouring candidates are neighbours in memory.
        backwards = [prefix[::-1].astype(np.float64), filled[::-1].astype(np.float64)]
        widths = (2 * i + 1) // levels
        starts = np.flatnonzero(np.diff(widths, prepend=0))
        for start, stop in zip(starts, np.append(starts[1:], i.size)):
            width = int(widths[start])
            some = int(stop - start)
            part = slice(start, stop)
            begin = zero - int(i[start])
            # Row: where a group begins; column: candidates. The last group begins within the bins.
            masses, counts = (
                as_strided(row[filled.size - 1 - begin :], (levels, some), (-8 * width, 8))
                for row in backwards
            )
            rows = max(_TERMS // some, 1)
            for group in range(1, levels - 1, rows):
                last = min(group + rows, levels - 1)
                if filled[begin + group * width - some + 1] == filled[begin + last * width]:
                    continue
                bounds = slice(group, last + 1)
                mass = np.diff(masses[bounds], axis=0)
                bins = np.diff(counts[bounds], axis=0)
                # Groups without filled bins have no mass; their logarithm only has to be finite.
                value = np.maximum(mass / np.maximum(bins, 1.0) - q_less[part], _TINY)
                terms = (mass - p_less[part] * bins) * log_series(value)
                out[part] += np.add.accumulate(terms, axis=0)[-1]
        return out

    def steps(self, values: F32, units: F64) -> I16 | None:
        """``values`` (outer, channels, inner) in whole steps of the unit of their channel, rounded
        half to even, at most ``MOST_STEPS``; None where one is not a number.
        """
        steps = np.rint(values / units[:, None])
        if np.isnan(steps).any():
            return None
        return np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int16)

    def products(
        self,
        read: Sequence[I16],
        wanted: Sequence[I16],
        layout: tuple[int, Sequence[I32]],
        products: I64,
        crossed: I64,
        sums: tuple[I64, I64],
    ) -> None:
        """Add to products and crossed (groups, taps, taps) those of what two taps read, and of what
        the first reads more of the wanted data and the second reads; to sums (groups, taps) those
        of either. Of products only the lower triangle counts.

        Args:
            read, wanted: run by run.
            layout: as of ``read_columns``, with places for each run.
        """
        groups, taps, _ = products.shape
        one, other = (
            np.concatenate(
                [read_columns(x, groups * taps, (layout[0], y)) for x, y in zip(runs, layout[1])],
                axis=1,
                dtype=np.float64,
            ).reshape(groups, taps, -1)
            for runs in (read, wanted)
        )
        more = other - one
        across = one.transpose(0, 2, 1)
        # Whole numbers below 2^53: exact in any order.
        products += (one @ across).astype(np.int64)
        crossed += (more @ across).astype(np.int64)
        for total, values in zip(sums, (one, more), strict=True):
            total += values.sum(axis=2).astype(np.int64)

    def shrunk(
        self,
        halves: Sequence[I64],
        sums: tuple[I64, I64],
        counts: Sequence[int],
        unit: F64,
        symmetric: bool,
        centred: bool,
    ) -> F32:
        """The mean products of taps (groups, taps, taps) over two parts of the data, in real units.
        Deviations from the mean count between different taps as far as both parts confirm them.

        Args:
            halves: (groups, taps, taps), sums of products of each part; of symmetric ones the
                lower triangle counts.
            sums: (2, groups, taps), of the first and of the second tap of a product in each part.
            counts: positions of each part; without a second one deviations count as they are.
            unit: (groups, taps), real units of a tap.
            centred: only deviations from the mean.
        """
        last = np.arange(unit.shape[1])
        lower = last[:, None] > last
        apart = lower if symmetric else lower | lower.T
        parts = (*halves, halves[0] + halves[1])
        left, right = ((*each, each[0] + each[1]) for each in sums)
        means = []
        for k, count in enumerate((*counts, sum(counts))):
            inverse = 1.0 / max(count, 1)
            # Differences of integers, exact below 2^16 positions: data that do not vary have none.
            apart_from = parts[k] * count - left[k][:, :, None] * right[k][:, None, :]
            means.append(apart_from * (inverse * inverse) * unit[:, :, None] * unit[:, None, :])
        one = left[2] * inverse * unit
        other = right[2] * inverse * unit
        common, most = (
            np.add.accumulate((one * other)[:, apart], axis=1)[:, -1:].sum(1)
            for one, other in (means[:2], (means[2], means[2]))
        )
        share = np.clip(common / np.maximum(most, _LEAST), 0.0, 1.0)
        share = share if counts[1] else np.ones_like(share)
        found = means[2].astype(np.float32).astype(np.float64)
        found *= np.where(np.eye(unit.shape[1], dtype=bool), 1.0, share[:, None, None])
        if not centred:
            found = found + one[:, :, None] * other[:, None, :]
        found = np.asarray(found, np.float32)
        if symmetric:
            return np.where(lower.T, found.transpose(0, 2, 1), found)
        return found

    def grid_errors(self, magnitudes: F32, scale: F32, levels: float, out: F32) -> None:
        """out[r, k] = what ``magnitudes`` (rows, columns) lose on a grid, 0 to ``levels`` times the
        scale of their row: halves go up, operations are those of float32.
        """
        np.divide(magnitudes, scale[:, None], out=out)
        out += np.float32(0.5)
        np.floor(out, out=out)
        np.minimum(out, np.float32(levels), out=out)
        out *= scale[:, None]
        out -= magnitudes

    def round_columns(self, values: F64, free: F64, factor: F64, ends: tuple[int, int]) -> F64:
        """Whole numbers from the first to the second of ``ends`` for ``free`` (groups, rows,
        columns), from the last column to the first. What each differs from ``values`` is added to
        the columns before it, times ``factor`` (groups, columns, columns), lower triangular.
        ``free`` is lost.
        """
        found = np.empty_like(values)
        for k in reversed(range(values.shape[2])):
            found[:, :, k] = on_grid(free[:, :, k], ends)
            error = values[:, :, k] - found[:, :, k]
            free[:, :, :k] += error[:, :, None] * factor[:, None, k, :k]
        return found


def read_columns(data: NDArray[Number], taps: int, layout: tuple[int, I32]) -> NDArray[Number]:
    """Return the reads of taps of contiguous data, (taps, positions), channel by channel.

    Args:
        layout: from one channel to the next, and what the taps of the first one read, (taps of a
            channel, positions), -1 for zeros.
    """
    stride, reads = layout
    begin = stride * np.arange(taps // len(reads))[:, None, None]
    found = data.reshape(-1).take(reads + begin)
    return np.where(reads < 0, data.dtype.type(0), found).reshape(taps, -1)


def on_grid(values: Floating, ends: tuple[int, int]) -> Floating:
    """Nearest whole numbers, halves away from zero, as realization rounds."""
    return np.clip(np.trunc(values + np.copysign(0.5, values)), *ends)


def _divergence(
    hist: I64,
    prefix: I64,
    filled: I64,
    i: int,
    levels: int,
) -> np.float32:
    """One candidate; every sum is left to right in float32, as np.add.accumulate does."""
    zero = hist.size // 2
    a = zero - i
    b = zero + i + 1
    n = 2 * i + 1
    p = hist[a:b].astype(np.float32)
    p[0] = prefix[a + 1]
    p[-1] = hist[b - 1] + prefix[-1] - prefix[b]
    width = n // levels
    begin = np.arange(levels) * width
    end = np.append(begin[1:], n)
    inner = begin.copy()
    inner[0] = 1  # inner[0] counts as 0
    sums = prefix[a + end] - prefix[a + inner]
    nonzero = filled[a + end] - filled[a + inner]
    values = np.zeros(levels, np.float32)
    np.divide(sums.astype(np.float32), nonzero.astype(np.float32), out=values, where=nonzero > 0)
    p_set = p != 0
    q = np.where(p_set, np.repeat(values, end - begin), np.float32(0))
    q_set = q != 0
    q_less = _smoothing(n, int(np.count_nonzero(q_set)))
    if q_less is None:
        return np.float32(np.inf)
    p_less = _smoothing(n, int(np.count_nonzero(p_set)))
    if p_less is None:
        return np.float32(0)
    p = np.where(p_set, p - p_less, _EPS)
    q = np.where(q_set, q - q_less, _EPS)
    share = p / np.add.accumulate(p, dtype=np.float32)[-1]
    ratio = share / (q / np.add.accumulate(q, dtype=np.float32)[-1])
    term = share * log_series(ratio.astype(np.float64)).astype(np.float32)
    return np.float32(np.add.accumulate(term, dtype=np.float32)[-1])


def _smoothing(n: int, filled: int) -> np.float32 | None:
    """Return the mass that every filled bin gives to the empty ones, each of which gets _EPS; None:
    too little."""
    if filled == 0:
        return None
    less = _EPS * np.float32(n - filled) / np.float32(filled)
    if less < 1:
        return less
    return None


def order_key(values: F32) -> I32:
    """Signed integers in the order of the floats: -0.0 below 0.0, NaN outside the infinities."""
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def key_value(keys: I32) -> F32:
    """Inverse of ``order_key``."""
    return (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
