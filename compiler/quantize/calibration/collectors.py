"""The two rounds of calibration: accumulators that batches of tensors stream through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.options import options_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.order_statistics import KeyCounter
from compiler.quantize.calibration.stats import (
    NUM_BINS,
    CalibrationStats,
    PointMap,
    TensorStats,
    bin_edges,
    bins_of,
    percentile_rank,
)
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.kernels.numpy_kernels import (
    UPPER_COUNTERS,
    key_value,
    order_key,
)

DEFAULT_PERCENTILES: Final[tuple[float, ...]] = options_of(QConfig)["percentile"].searched
"""Fractions whose order statistics a study collects unless it says otherwise."""

_INFINITY_BUCKET = 0x7F80

_FEW_VALUES = 4096
"""A batch of fewer values of a tensor is kept as entries."""


def _row(values: NDArray[Any]) -> NDArray[np.float32]:
    """The values as one axis; an empty tensor becomes one zero."""
    row = np.ascontiguousarray(values, np.float32).reshape(-1)
    if row.size:
        return row
    return np.zeros(1, np.float32)


class RangeCollector:
    """Round 1: extremes, sizes and counters of the upper 16 bits.

    A tensor of many values is counted in a table of 256 KiB, one of few as entries: a graph of
    100,000 operators has tens of thousands of tensors.
    """

    def __init__(self, points: PointMap) -> None:
        self._points = points
        self._kernels = choose_kernels()
        tensors = len(points.labels)
        self._keys = np.empty((tensors, 2), np.int32)
        self._keys[:, 0] = np.iinfo(np.int32).max
        self._keys[:, 1] = np.iinfo(np.int32).min
        self._count = np.zeros(tensors, np.int64)
        self._upper = [KeyCounter() for _ in range(tensors)]

    def update(self, tensors: Iterable[NDArray[Any]]) -> None:
        """Add one batch: one array per tensor, any shape."""
        for index, values in enumerate(tensors):
            row = _row(values)
            counter = self._upper[index]
            if row.size < _FEW_VALUES and counter.table is None:
                self._count_few(index, row)
            else:
                self._kernels.count_ranges(row, counter.dense(UPPER_COUNTERS), self._keys[index])
            self._count[index] += row.size

    def _count_few(self, index: int, row: NDArray[np.float32]) -> None:
        keys, (least, most) = order_key(row), self._keys[index]
        self._keys[index] = min(least, keys.min()), max(most, keys.max())
        upper = ((row.view(np.int32) & 0x7FFFFFFF) >> 16).astype(np.uint16)
        self._upper[index].add(upper, np.ones(row.size, np.int32))

    def result(self) -> CalibrationStats:
        """Statistics of round 1.

        Raises:
            CalibrationError: a tensor had no values, or some that are not finite.
        """
        uppers = tuple(counter.result() for counter in self._upper)
        for label, count, upper in zip(self._points.labels, self._count, uppers, strict=True):
            if count == 0:
                raise CalibrationError("no values were seen", where=label)
            bad = int(upper.counts[upper.keys >= _INFINITY_BUCKET].sum())
            if bad:
                raise CalibrationError(
                    f"{bad} of {count} values are NaN or infinite",
                    where=label,
                    fix="check the model and the calibration data",
                )
        extremes = key_value(self._keys)
        ends = extremes[:, 0], extremes[:, 1]
        columns = zip(self._points.labels, *ends, self._count.tolist(), uppers, strict=True)
        return CalibrationStats.of(self._points, tuple(TensorStats(*each) for each in columns))


class HistogramCollector:
    """Round 2: histograms over the ranges of round 1, and what exact percentiles still need.

    Args:
        ranges: merged result of round 1.
        percentiles: fractions whose order statistics are wanted.
    Raises:
        CalibrationError: a fraction is out of (0, 1], or more than 255 are asked for.
    """

    def __init__(
        self, ranges: CalibrationStats, percentiles: Sequence[float] = DEFAULT_PERCENTILES
    ) -> None:
        wanted = tuple(sorted({float(p) for p in percentiles}))
        if len(wanted) > 255 or any(not 0 < p <= 1 for p in wanted):
            raise CalibrationError(
                f"percentiles {wanted} cannot be collected", fix="at most 255, each in (0, 1]"
            )
        self._ranges = ranges
        self._percentiles = wanted
        self._kernels = choose_kernels()
        self._largest = [tensor.largest for tensor in ranges.tensors]
        self._bins = [KeyCounter() for _ in ranges.tensors]
        self._edges: dict[int, NDArray[np.float32]] = {}
        self._buckets = [
            np.asarray(
                sorted({tensor.upper.find(percentile_rank(tensor.count, p))[0] for p in wanted}),
                np.int32,
            )
            for tensor in ranges.tensors
        ]
        self._lower = [[KeyCounter() for _ in buckets] for buckets in self._buckets]

    def update(self, tensors: Iterable[NDArray[Any]]) -> None:
        """Add one batch: one array per tensor, any shape."""
        for index, values in enumerate(tensors):
            row = _row(values)
            self._count_bins(index, row)
            found = self._kernels.collect_low(row, self._buckets[index])
            for counter, (keys, times) in zip(self._lower[index], found, strict=True):
                counter.add(keys, times)

    def _count_bins(self, index: int, row: NDArray[np.float32]) -> None:
        counter = self._bins[index]
        if row.size < _FEW_VALUES and counter.table is None:
            keys = bins_of(row, self._largest[index])
            counter.add(keys, np.ones(row.size, np.int32))
            return
        if index not in self._edges:
            self._edges[index] = bin_edges(self._largest[index])
        self._kernels.histogram(row, self._edges[index], counter.dense(NUM_BINS))

    def result(self) -> CalibrationStats:
        """Statistics of both rounds."""
        tensors = []
        for index, tensor in enumerate(self._ranges.tensors):
            counters = zip(self._buckets[index].tolist(), self._lower[index], strict=True)
            lower = {bucket: counter.result() for bucket, counter in counters}
            tensors.append(replace(tensor, lower=lower, bins=self._bins[index].result(), memo={}))
        return CalibrationStats.of(self._ranges, tuple(tensors), self._percentiles)
