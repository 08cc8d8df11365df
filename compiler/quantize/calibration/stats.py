"""CalibrationStats: what calibration keeps of every quantize point, and its exact merge.

All fields are minima, maxima or integer counts, so shards merged in any order give the same bits,
and size does not depend on the number of samples. Round 1 leaves ranges and counters of the upper
16 bits of |x|; round 2 adds a histogram over the agreed range and, for the buckets that the wanted
percentiles fall into, counters of the lower 16 bits: exact order statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import CalibrationError
from compiler.quantize.calibration.order_statistics import BucketCounts
from compiler.quantize.calibration.point_bits import Readers

NUM_BINS = 8001
"""Bins of the round-2 histogram, as in Relay v0.10."""


def flat_float32(values: ArrayLike) -> NDArray[np.float32]:
    """The values as one contiguous float32 row.

    Raises:
        CalibrationError: there are none, or one is not finite.
    """
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if flat.size == 0:
        raise CalibrationError("no values to calibrate on", fix="give at least one sample")
    if not np.isfinite(flat).all():
        first = int(np.flatnonzero(~np.isfinite(flat))[0])
        raise CalibrationError(f"value {first} is {flat[first]}", fix="remove NaN and infinity")
    return flat


def bin_edges(largest: np.float32, num_bins: int = NUM_BINS) -> NDArray[np.float32]:
    """Edges of equal bins over [-largest, largest]: float64 linspace rounded to float32.

    For largest = 0 the range is [-0.5, 0.5]. Shape (num_bins + 1,).
    """
    span = float(largest) or 0.5
    return np.linspace(-span, span, num_bins + 1, dtype=np.float64).astype(np.float32)


def bins_of(values: NDArray[np.float32], largest: np.float32) -> NDArray[np.uint16]:
    """The bin of each value among ``bin_edges``; those beyond the edges are in the outer bins."""
    span = float(largest) or 0.5
    if not 1e-30 < span < 1e38:  # float32 edges coincide, or their distance is beyond float32
        return np.searchsorted(bin_edges(largest)[1:-1], values, side="right").astype(np.uint16)
    width = 2 * span / NUM_BINS
    found = np.clip(((values + np.float64(span)) / width).astype(np.int64), 0, NUM_BINS - 1)
    # An edge in float32 is less than a bin from where it is in float64.
    found -= values < (found * width - span).astype(np.float32)
    found += values >= ((found + 1) * width - span).astype(np.float32)
    return np.clip(found, 0, NUM_BINS - 1).astype(np.uint16)


def percentile_rank(count: int, fraction: float) -> int:
    """0-based rank k = int(count * fraction), at most count - 1."""
    return min(int(count * fraction), count - 1)


@dataclass(frozen=True, slots=True, eq=False)
class TensorStats:
    """Statistics of one tensor over the calibration set, read from a CalibrationStats.

    Attributes:
        label: the tensor's producer, for messages.
        minimum, maximum: extremes.
        count: number of values.
        upper, lower: counters of the bit pattern of |x|, see ``BucketCounts``.
        bins: round-2 counts of NUM_BINS bins over [-largest, largest]; None after round 1.
    """

    label: str
    minimum: np.float32
    maximum: np.float32
    count: int
    upper: BucketCounts
    lower: Mapping[int, BucketCounts]
    bins: BucketCounts | None

    @property
    def hist(self) -> NDArray[np.int64] | None:
        """``bins`` as a new array of shape (NUM_BINS,)."""
        return None if self.bins is None else self.bins.dense(NUM_BINS)

    def histogram(self) -> NDArray[np.int64]:
        """``hist`` of both rounds.

        Raises:
            CalibrationError: there is none.
        """
        hist = self.hist
        if hist is None:
            raise CalibrationError("no histogram was collected", where=self.label)
        return hist

    @property
    def largest(self) -> np.float32:
        """max|x|."""
        return np.float32(max(abs(self.minimum), abs(self.maximum)))

    def order_statistic(self, rank: int) -> np.float32:
        """The rank-th smallest |x|, 0-based, exact.

        Raises:
            CalibrationError: round 2 did not count the bucket this rank falls into.
        """
        if rank == self.count - 1:
            return self.largest
        bucket, below = self.upper.find(rank)
        low = self.lower.get(bucket)
        if low is None:
            raise CalibrationError(
                f"order statistic {rank} of {self.count} values was not collected",
                where=self.label,
                fix="add the percentile to those given when calibration started",
            )
        pattern = (bucket << 16) | low.find(rank - below)[0]
        return np.uint32(pattern).view(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class PointMap:
    """Which of the profile function's outputs each quantize point reads.

    Attributes:
        labels: one text per output (distinct tensor).
        point_tensor: output of each non-WEIGHT point in binding order, shape (points,).
        point_kind: QAnnotateKind number of each point, shape (points,).
        readers: names of the layers that read each point, as ``point_readers`` gives them.
    """

    labels: tuple[str, ...]
    point_tensor: NDArray[np.int64]
    point_kind: NDArray[np.int64]
    readers: tuple[Readers, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationStats(PointMap):
    """Statistics of all quantize points of one annotated module, and of the tensors they read.

    Attributes:
        minimum, maximum: float32, shape (tensors,).
        count: int64, shape (tensors,).
        upper: counters of the upper 16 bits of |x| per tensor.
        hist: counts of the bins of round 2 per tensor; None after round 1.
        lower: per tensor: bucket → counters of the lower 16 bits of the |x| in it.
        percentiles: the fractions whose order statistics ``lower`` serves.
        memos: ranges that were chosen for each tensor; variants that share a tensor share them.
    """

    minimum: NDArray[np.float32]
    maximum: NDArray[np.float32]
    count: NDArray[np.int64]
    upper: tuple[BucketCounts, ...]
    hist: tuple[BucketCounts, ...] | None = None
    lower: tuple[Mapping[int, BucketCounts], ...] = ()
    percentiles: tuple[float, ...] = ()
    memos: tuple[dict[Any, Any], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.memos:
            object.__setattr__(self, "memos", tuple({} for _ in self.labels))

    @staticmethod
    def of_nothing() -> CalibrationStats:
        """Both rounds of a module that leaves no range to be measured."""
        none, zeros = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return CalibrationStats((), none, none, (), zeros, zeros, none, (), ())

    @property
    def round(self) -> int:
        """1: ranges only; 2: everything."""
        return 1 if self.hist is None else 2

    def tensor(self, index: int) -> TensorStats:
        """Statistics of one distinct tensor."""
        return TensorStats(
            self.labels[index],
            self.minimum[index],
            self.maximum[index],
            int(self.count[index]),
            self.upper[index],
            self.lower[index] if self.lower else {},
            None if self.hist is None else self.hist[index],
        )

    def merge(self, other: CalibrationStats) -> CalibrationStats:
        """Statistics of both shards together; exact, commutative and associative.

        Raises:
            CalibrationError: the shards are of different rounds, modules or round-2 ranges.
        """
        same = (
            self.labels == other.labels
            and np.array_equal(self.point_tensor, other.point_tensor)
            and np.array_equal(self.point_kind, other.point_kind)
        )
        if not same or self.round != other.round or self.percentiles != other.percentiles:
            raise CalibrationError(
                "statistics of different modules, rounds or percentiles cannot be merged",
                where=f"round {self.round} of {len(self.labels)} tensors and round {other.round} "
                f"of {len(other.labels)}",
            )
        if self.hist is None or other.hist is None:
            return replace(
                self,
                minimum=np.minimum(self.minimum, other.minimum),
                maximum=np.maximum(self.maximum, other.maximum),
                count=self.count + other.count,
                upper=tuple(a.merge(b) for a, b in zip(self.upper, other.upper, strict=True)),
                memos=(),
            )
        if not (
            np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
            and np.array_equal(self.count, other.count)
        ):
            raise CalibrationError(
                "round-2 shards were taken over different ranges",
                fix="give every shard the same merged result of round 1",
            )
        lower = tuple(
            {bucket: counts.merge(b[bucket]) for bucket, counts in a.items()}
            for a, b in zip(self.lower, other.lower, strict=True)
        )
        hist = tuple(a.merge(b) for a, b in zip(self.hist, other.hist, strict=True))
        return replace(self, hist=hist, lower=lower, memos=())

    def of_points(self, points: PointMap, places: Sequence[int]) -> CalibrationStats:
        """Other points over some of the tensors: their tensor i is the one of ``places[i]``."""
        some = list(places)
        return replace(
            self,
            labels=points.labels,
            point_tensor=points.point_tensor,
            point_kind=points.point_kind,
            readers=points.readers,
            minimum=self.minimum[some],
            maximum=self.maximum[some],
            count=self.count[some],
            upper=tuple(self.upper[place] for place in some),
            hist=None if self.hist is None else tuple(self.hist[place] for place in some),
            lower=tuple(self.lower[place] for place in some) if self.lower else (),
            memos=tuple(self.memos[place] for place in some),
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds; no pickle."""
        arrays: dict[str, NDArray[Any]] = {
            "labels": np.asarray(self.labels, dtype=np.str_),
            "point_tensor": self.point_tensor,
            "point_kind": self.point_kind,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "count": self.count,
            "percentiles": np.asarray(self.percentiles, np.float64),
        }
        arrays |= _pack_readers(self.readers)
        arrays |= _pack("upper", [(index, 0, c) for index, c in enumerate(self.upper)])
        if self.hist is not None:
            arrays |= _pack("hist", [(index, 0, counts) for index, counts in enumerate(self.hist)])
            entries = [
                (index, bucket, counts)
                for index, buckets in enumerate(self.lower)
                for bucket, counts in sorted(buckets.items())
            ]
            arrays |= _pack("lower", entries)
        return arrays

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> CalibrationStats:
        """Inverse of ``to_arrays``.

        Raises:
            CalibrationError: an array is missing.
        """
        try:
            upper = tuple(counts for _, _, counts in _unpack("upper", arrays))
            lower: list[dict[int, BucketCounts]] = [{} for _ in upper]
            hist: tuple[BucketCounts, ...] | None = None
            if "hist" in arrays:  # of version 0.1, one row a tensor
                hist = tuple(BucketCounts.from_dense(row) for row in arrays["hist"])
            elif "hist_sizes" in arrays:
                hist = tuple(counts for _, _, counts in _unpack("hist", arrays))
            if hist is not None:
                for index, bucket, counts in _unpack("lower", arrays):
                    lower[index][bucket] = counts
            return CalibrationStats(
                tuple(str(label) for label in arrays["labels"]),
                np.asarray(arrays["point_tensor"]),
                np.asarray(arrays["point_kind"]),
                _unpack_readers(arrays),
                np.asarray(arrays["minimum"]),
                np.asarray(arrays["maximum"]),
                np.asarray(arrays["count"]),
                upper,
                hist,
                tuple(lower),
                tuple(float(p) for p in arrays["percentiles"]),
            )
        except KeyError as error:
            raise CalibrationError(
                f"the arrays hold no calibration statistics: {error} is missing",
                where=", ".join(sorted(arrays)) or "no arrays",
            ) from error


def merge_stats(shards: Iterable[CalibrationStats]) -> CalibrationStats:
    """All shards together, in any order.

    Raises:
        CalibrationError: there is none, or they do not belong together.
    """
    merged: CalibrationStats | None = None
    for shard in shards:
        merged = shard if merged is None else merged.merge(shard)
    if merged is None:
        raise CalibrationError("no statistics to merge", fix="calibrate on at least one sample")
    return merged


def _pack_readers(readers: tuple[Readers, ...]) -> dict[str, NDArray[Any]]:
    pairs = [(point, name) for point, names in enumerate(readers) for name in names]
    return {
        "reader_point": np.asarray([point for point, _ in pairs], np.int64),
        "reader_name": np.asarray([name for _, name in pairs], dtype=np.str_),
    }


def _unpack_readers(arrays: Mapping[str, NDArray[Any]]) -> tuple[Readers, ...]:
    found: list[list[str]] = [[] for _ in arrays["point_tensor"]]
    for point, name in zip(arrays["reader_point"], arrays["reader_name"], strict=True):
        found[int(point)].append(str(name))
    return tuple(tuple(names) for names in found)


def _pack(name: str, entries: list[tuple[int, int, BucketCounts]]) -> dict[str, NDArray[Any]]:
    sizes = np.asarray([counts.keys.size for _, _, counts in entries], np.int64)
    return {
        f"{name}_owner": np.asarray([entry[:2] for entry in entries], np.int64).reshape(-1, 2),
        f"{name}_sizes": sizes,
        f"{name}_keys": np.concatenate([[], *(c.keys for _, _, c in entries)]).astype(np.uint16),
        f"{name}_counts": np.concatenate(
            [np.zeros(0, np.int64), *(c.counts for _, _, c in entries)]
        ),
    }


def _unpack(name: str, arrays: Mapping[str, NDArray[Any]]) -> list[tuple[int, int, BucketCounts]]:
    stops = np.cumsum(arrays[f"{name}_sizes"])
    keys, counts = arrays[f"{name}_keys"], arrays[f"{name}_counts"]
    return [
        (
            int(owner),
            int(bucket),
            BucketCounts(keys[stop - size : stop], counts[stop - size : stop]),
        )
        for (owner, bucket), size, stop in zip(
            arrays[f"{name}_owner"], arrays[f"{name}_sizes"], stops, strict=True
        )
    ]
