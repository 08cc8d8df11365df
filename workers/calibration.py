"""Calibration of one shard: the float network runs over samples, statistics come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.lru_cache import LRUCache
from compiler.quantize import ChannelStats
from compiler.quantize.calibration.measurement import (
    CHANNEL_STEPS,
    Measurement,
    Profile,
    measure_channels,
)
from compiler.quantize.calibration.stats import CalibrationStats
from workers.batching import model_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import OpenDatasets, input_specs
from workers.errors import DatasetError
from workers.messages import CalibrationRequest, CalibrationResult
from workers.object_store import ObjectStore
from workers.process import Stopwatch

_CHUNK = 16
"""Samples read from the dataset at a time."""


class CalibrationActor:
    """Calibrates shards in one process; remembers the last networks it prepared.

    Args:
        values: where handles of requests are looked up.
    """

    def __init__(self, values: ObjectStore) -> None:
        self._values = values
        self._profiles: LRUCache[tuple[tuple[InputSpec, ...], Profile]] = LRUCache(2)
        self._datasets = OpenDatasets()

    def forget(self) -> None:
        """Release networks and data; a study calibrates once and then evaluates."""
        self._profiles.clear()
        self._datasets = OpenDatasets()

    def run(self, request: CalibrationRequest) -> CalibrationResult:
        """Statistics of one shard and one step.

        Raises:
            CompilerError: the module cannot be quantized or run.
            DatasetError: the data does not fit, is empty or not finite.
            CalibrationError: values inside the network are not finite, or what the step before
                found is missing.
        """
        watch = Stopwatch()
        if len(request.samples) == 0:
            raise DatasetError("no sample to calibrate on", where=str(request.samples))
        measurement = self._measurement(request)
        mod = self._values.module(request.blob)
        if measurement.step in CHANNEL_STEPS:
            batches = self._batches(request, input_specs(mod))
            arrays = measure_channels(mod, measurement, batches).to_arrays()
        else:
            inputs, profile = self._profiles.get(
                self._key(request), lambda: (input_specs(mod), Profile.of(mod, measurement))
            )
            arrays = profile.measure(measurement, self._batches(request, inputs)).to_arrays()
        return CalibrationResult(arrays, len(request.samples), watch.cpu_s)

    def _measurement(self, request: CalibrationRequest) -> Measurement:
        channels, merged = (self._values.value(v) for v in (request.channels, request.merged))
        return replace(
            request.measurement,
            channels=None if channels is None else ChannelStats.from_arrays(channels),
            merged=None if merged is None else CalibrationStats.from_arrays(merged),
        )

    def _key(self, request: CalibrationRequest) -> tuple[Any, ...]:
        """Key of the network that the steps "ranges" and "histograms" share."""
        blob, channels = map(self._values.key, (request.blob, request.channels))
        return blob, request.measurement.qconfig, channels

    def _batches(
        self, request: CalibrationRequest, inputs: tuple[InputSpec, ...]
    ) -> Iterator[dict[str, NDArray[np.generic]]]:
        dataset = self._datasets.open(request.dataset, inputs)
        for batch in model_batches(dataset, request.samples, inputs, _CHUNK):
            yield batch.inputs
