"""Calibration of one shard: the float network runs over samples, statistics come back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.blob import ModuleBlob
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import ChannelStats, build_candidate, mark
from compiler.quantize.calibration.channel_stats import ChannelCollector
from compiler.quantize.calibration.collect_stats import float_executor, profile_outputs
from compiler.quantize.calibration.collectors import (
    HistogramCollector,
    PointMap,
    RangeCollector,
)
from compiler.quantize.calibration.input_grams import GramCollector
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.calibration.stats import CalibrationStats
from compiler.runtime.executor import Executor
from workers.batching import model_batches
from workers.datasets.open_datasets import OpenDatasets
from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import input_specs
from workers.errors import DatasetError, WorkerError
from workers.messages import CalibrationRequest, CalibrationResult, Handle, Range
from workers.object_store import LRUCache, ObjectStore
from workers.resources import CpuClock, peak_rss_bytes

_CHUNK = 16
"""Samples read from the dataset at a time."""


class _Profile:
    """The network of one request, ready to run; rounds 1 and 2 of a study share it."""

    def __init__(
        self,
        blob: bytes,
        qconfig: Mapping[str, Any],
        channels: Mapping[str, NDArray[Any]] | None,
        ranges: tuple[float, ...] | None,
    ) -> None:
        mod = ModuleBlob(blob).unpack()
        self.inputs: tuple[InputSpec, ...] = input_specs(mod)
        measured = None if channels is None else ChannelStats.from_arrays(channels)
        config = QConfig.from_dict(dict(qconfig))
        if ranges is None:
            annotated, _ = mark(mod, config, measured)
            profile, points = profile_function(annotated)
        else:
            simulation = config.with_overrides(do_simulation=True)
            quantized = build_candidate(mod, simulation, ranges, measured).simulated
            profile, points = profile_function(quantized, simulated=True)
        self.points: PointMap = points
        self.executor: Executor = float_executor(profile)


class CalibrationActor:
    """Calibrates shards in one process; remembers the last networks it prepared.

    Args:
        values: where handles of requests are looked up.
    """

    def __init__(self, values: ObjectStore) -> None:
        self._values = values
        self._profiles: LRUCache[_Profile] = LRUCache(2)
        self._datasets = OpenDatasets()

    def forget(self) -> None:
        """Release networks and data; a study calibrates once and then evaluates."""
        self._profiles.clear()
        self._datasets = OpenDatasets()

    def run(self, request: CalibrationRequest) -> CalibrationResult:
        """Statistics of one shard and one round.

        Raises:
            CompilerError: the module cannot be quantized or run.
            DatasetError: the data does not fit, is empty or not finite.
            CalibrationError: values inside the network are not finite.
        """
        clock = CpuClock()
        if request.round == 0:
            return self._channels(request, clock)
        given = request.channels
        key = (
            self._values.key(request.blob),
            json.dumps(dict(request.qconfig), sort_keys=True),
            "" if given is None else self._values.key(given),
            request.ranges,
        )
        profile = self._profiles.get(
            key,
            lambda: _Profile(
                self._values.value(request.blob),
                request.qconfig,
                self._values.value(given),
                request.ranges,
            ),
        )
        dataset = self._datasets.open(request.dataset, profile.inputs)
        if len(request.samples) == 0:
            raise DatasetError("no sample to calibrate on", where=str(request.samples))
        collector = self._collector(request, profile)
        for outputs in profile_outputs(
            profile.executor, _batches(dataset, request.samples, profile.inputs)
        ):
            collector.update(outputs)
        arrays = collector.result().to_arrays()
        return CalibrationResult(arrays, len(request.samples), clock.seconds, peak_rss_bytes())

    def _channels(self, request: CalibrationRequest, clock: CpuClock) -> CalibrationResult:
        mod = ModuleBlob(self._values.value(request.blob)).unpack()
        inputs = input_specs(mod)
        dataset = self._datasets.open(request.dataset, inputs)
        if len(request.samples) == 0:
            raise DatasetError("no sample to calibrate on", where=str(request.samples))
        collector: ChannelCollector | GramCollector = ChannelCollector(mod)
        if request.channels is not None:
            known = ChannelStats.from_arrays(self._values.value(request.channels))
            collector = GramCollector(mod, known.ranges())
        executor = float_executor(collector.profile)
        for outputs in profile_outputs(executor, _batches(dataset, request.samples, inputs)):
            collector.update(outputs)
        arrays = collector.result().to_arrays()
        return CalibrationResult(arrays, len(request.samples), clock.seconds, peak_rss_bytes())

    def _collector(
        self, request: CalibrationRequest, profile: _Profile
    ) -> RangeCollector | HistogramCollector:
        if request.round == 1:
            return RangeCollector(profile.points)
        merged = self._values.value(request.merged)
        if request.round != 2 or merged is None:
            raise WorkerError(
                f"calibration round {request.round} without the merged ranges of round 1",
                fix="rounds are 0, 1 and 2; round 2 takes the merged result of round 1",
            )
        return HistogramCollector(CalibrationStats.from_arrays(merged), request.percentiles)


def _batches(
    dataset: Dataset, samples: Range, inputs: tuple[InputSpec, ...]
) -> Iterator[dict[str, NDArray[np.generic]]]:
    for batch in model_batches(dataset, samples, inputs, _CHUNK):
        yield dict(batch.inputs)


def calibrate_shard(request: CalibrationRequest) -> CalibrationResult:
    """One shard in this process, nothing remembered; see ``CalibrationActor.run``."""
    return CalibrationActor(ObjectStore(no_handles)).run(request)


def no_handles(handle: Handle) -> Any:
    """Looks up nothing.

    Raises:
        WorkerError: always.
    """
    raise WorkerError(f"no pool knows the handle {handle.key[:12]}", fix="put the value itself")
