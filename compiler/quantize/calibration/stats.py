"""CalibrationStats: what calibration keeps of every quantize point, and its exact merge.

All fields are minima, maxima or integer counts, so shards merged in any order give the same bits,
and size does not depend on the number of samples. Round 1 leaves ranges and counters of the upper
16 bits of |x|; round 2 adds a histogram over the agreed range and, for the buckets that the wanted
percentiles fall into, counters of the lower 16 bits: exact order statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import CalibrationError
from compiler.quantize.calibration.order_statistics import BucketCounts

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
    """Statistics of one tensor over the calibration set.

    Attributes:
        label: the tensor's producer, for messages.
        minimum, maximum: extremes.
        count: number of values.
        upper, lower: counters of the bit pattern of |x|, see ``BucketCounts``.
        bins: round-2 counts of NUM_BINS bins over [-largest, largest]; None after round 1.
        memo: ranges that were chosen for the tensor; variants that share the tensor share them.
    """

    label: str
    minimum: np.float32
    maximum: np.float32
    count: int
    upper: BucketCounts
    lower: Mapping[int, BucketCounts] = field(default_factory=dict)
    bins: BucketCounts | None = None
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def hist(self) -> NDArray[np.int64] | None:
        """``bins`` as a new array of shape (NUM_BINS,)."""
        if self.bins is None:
            return None
        return self.bins.dense(NUM_BINS)

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

    def merge(self, other: TensorStats) -> TensorStats:
        """Statistics of both shards together.

        Raises:
            CalibrationError: histograms were taken over different ranges.
        """
        if self.bins is None or other.bins is None:
            return replace(
                self,
                minimum=np.minimum(self.minimum, other.minimum),
                maximum=np.maximum(self.maximum, other.maximum),
                count=self.count + other.count,
                upper=self.upper.merge(other.upper),
                memo={},
            )
        ranges = [(one.minimum, one.maximum, one.count) for one in (self, other)]
        if ranges[0] != ranges[1]:
            raise CalibrationError(
                "round-2 shards were taken over different ranges",
                fix="give every shard the same merged result of round 1",
            )
        lower = {bucket: counts.merge(other.lower[bucket]) for bucket, counts in self.lower.items()}
        return replace(self, bins=self.bins.merge(other.bins), lower=lower, memo={})


@dataclass(frozen=True, slots=True, eq=False)
class PointMap:
    """Outputs of the profile function that each quantize point reads.

    Attributes:
        labels: one text per output (distinct tensor).
        point_tensor: output of each non-WEIGHT point in binding order, shape (points,).
        point_kind: QAnnotateKind number of each point, shape (points,).
        readers: names of the layers that read each point, as ``point_readers`` gives them.
    """

    labels: tuple[str, ...]
    point_tensor: NDArray[np.int64]
    point_kind: NDArray[np.int64]
    readers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationStats(PointMap):
    """Statistics of all quantize points of one annotated module, and of the tensors they read.

    Attributes:
        tensors: statistics of each tensor.
        percentiles: the fractions whose order statistics were collected.
    """

    tensors: tuple[TensorStats, ...]
    percentiles: tuple[float, ...] = ()

    @staticmethod
    def of_nothing() -> CalibrationStats:
        """Both rounds of a module that leaves no range to be measured."""
        none = np.zeros(0, np.int64)
        return CalibrationStats((), none, none, (), ())

    @property
    def round(self) -> int:
        """1: ranges only; 2: everything."""
        if any(one.bins is None for one in self.tensors):
            return 1
        return 2

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
        tensors = tuple(a.merge(b) for a, b in zip(self.tensors, other.tensors, strict=True))
        return replace(self, tensors=tensors)

    def of_points(self, points: PointMap, places: Sequence[int]) -> CalibrationStats:
        """Other points over some of the tensors: their tensor i is the one of ``places[i]``."""
        named = zip(places, points.labels, strict=True)
        tensors = tuple(replace(self.tensors[place], label=label) for place, label in named)
        return CalibrationStats.of(points, tensors, self.percentiles)

    @staticmethod
    def of(
        points: PointMap, tensors: tuple[TensorStats, ...], percentiles: tuple[float, ...] = ()
    ) -> CalibrationStats:
        """Statistics of these points."""
        of_points = {each.name: getattr(points, each.name) for each in fields(PointMap)}
        return CalibrationStats(**of_points, tensors=tensors, percentiles=percentiles)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds; no pickle."""
        arrays: dict[str, NDArray[Any]] = {
            "labels": np.asarray(self.labels, dtype=np.str_),
            "point_tensor": self.point_tensor,
            "point_kind": self.point_kind,
            "minimum": np.asarray([one.minimum for one in self.tensors], np.float32),
            "maximum": np.asarray([one.maximum for one in self.tensors], np.float32),
            "count": np.asarray([one.count for one in self.tensors], np.int64),
            "percentiles": np.asarray(self.percentiles, np.float64),
            "readers": np.asarray(json.dumps(self.readers)),
        }
        arrays |= _pack("upper", [one.upper for one in self.tensors])
        if self.round == 2:
            arrays |= _pack("hist", [one.bins for one in self.tensors if one.bins is not None])
            lower = [
                ((index, bucket), counts)
                for index, one in enumerate(self.tensors)
                for bucket, counts in sorted(one.lower.items())
            ]
            owners = [owner for owner, _ in lower]
            arrays["lower_owner"] = np.asarray(owners, np.int64).reshape(-1, 2)
            arrays |= _pack("lower", [counts for _, counts in lower])
        return arrays

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> CalibrationStats:
        """Inverse of ``to_arrays``.

        Raises:
            CalibrationError: an array is missing.
        """
        try:
            upper = _unpack("upper", arrays)
            lower: list[dict[int, BucketCounts]] = [{} for _ in upper]
            hist: list[BucketCounts] | list[None] = [None for _ in upper]
            if "hist_sizes" in arrays:
                hist = _unpack("hist", arrays)
                owners = arrays["lower_owner"].tolist()
                for (index, bucket), counts in zip(owners, _unpack("lower", arrays), strict=True):
                    lower[index][bucket] = counts
            labels = tuple(str(label) for label in arrays["labels"])
            ranges = arrays["minimum"], arrays["maximum"], arrays["count"].tolist()
            readers = zip(arrays["point_tensor"], json.loads(str(arrays["readers"])), strict=True)
            columns = zip(labels, *ranges, upper, lower, hist, strict=True)
            return CalibrationStats(
                labels,
                np.asarray(arrays["point_tensor"]),
                np.asarray(arrays["point_kind"]),
                tuple(tuple(names) for _, names in readers),
                tuple(TensorStats(*column) for column in columns),
                tuple(float(p) for p in arrays["percentiles"]),
            )
        except KeyError as error:
            raise CalibrationError(
                f"the arrays hold no calibration statistics: {error} is missing",
                where=", ".join(sorted(arrays)) or "no arrays",
            ) from error


def _pack(name: str, counted: list[BucketCounts]) -> dict[str, NDArray[Any]]:
    counts = [np.zeros(0, np.int64), *(each.counts for each in counted)]
    return {
        f"{name}_sizes": np.asarray([each.keys.size for each in counted], np.int64),
        f"{name}_keys": np.concatenate([[], *(c.keys for c in counted)]).astype(np.uint16),
        f"{name}_counts": np.concatenate(counts),
    }


def _unpack(name: str, arrays: Mapping[str, NDArray[Any]]) -> list[BucketCounts]:
    stops = np.cumsum(arrays[f"{name}_sizes"])
    parts = [np.split(arrays[f"{name}_{each}"], stops)[:-1] for each in ("keys", "counts")]
    return [BucketCounts(keys, counts) for keys, counts in zip(*parts, strict=True)]
