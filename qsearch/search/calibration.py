"""Calibration, once per graph variant: statistics from the workers, scales from them.

Statistics and scales are artefacts of the study, so a resumed search does not measure again; nor
does another study of the storage that reads the same folder of artefacts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.activation_scales import activation_scales
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.clipping import clipping_note, heavily_clipped
from compiler.quantize.calibration.input_grams import InputGrams
from compiler.quantize.calibration.stats import CalibrationStats, merge_stats
from qsearch.progress import Progress
from qsearch.search.evaluations import await_workers, gather
from qsearch.search.space import canonical_fields, content_hash
from qsearch.store.artifacts import ArtifactStore
from qsearch.store.records import StoredArtifact
from qsearch.store.repository import Repository
from workers.messages import CalibrationRequest, CalibrationResult, DatasetRef, Range
from workers.object_store import LRUCache
from workers.pool.protocol import WorkerPool

log = logging.getLogger("qsearch.search.calibration")

CHANNELS = "channels"
STATISTICS = "calibration"
SCALES = "scales"
MEASUREMENTS = (CHANNELS, STATISTICS, SCALES)
_VARIANTS = 8
"""Graph variants whose statistics are held; those of others are read again."""
# Fields beside calibration_fields() that decide the activation scales.
_SCALE_FIELDS = (
    "calibrate_mode",
    "percentile",
    "global_scale",
    "nbit_input",
    "nbit_activation",
    "dtype_input",
    "activation_scheme",
)


@dataclass(slots=True)
class Calibrator:
    """Gives the activation scales of configurations, measuring at most once per graph variant.

    Args:
        repository, artifacts, study_id: where statistics and scales are kept.
        pool: where the model runs; must be idle when ``scales_for`` needs statistics.
        blob: the float module, or the pool's handle of it.
        key: all that decides the statistics beside the QConfig (module, data, code).
        dataset, samples: calibration inputs.
        percentiles: fractions whose order statistics the study may ask for.
        grams: channel statistics hold products of what weights read, for adaptive rounding.
        leaves_ranges: False where the model brings all ranges along, so that there are none.
    """

    repository: Repository
    artifacts: ArtifactStore
    study_id: int
    pool: WorkerPool
    blob: Any
    key: Mapping[str, Any]
    dataset: DatasetRef
    samples: Range
    percentiles: tuple[float, ...]
    progress: Progress
    clock: Callable[[], float] = time.process_time
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on it in this run."""
    grams: bool = False
    leaves_ranges: bool = True
    _stats: LRUCache[CalibrationStats] = field(default_factory=lambda: LRUCache(_VARIANTS))
    _scales: dict[str, tuple[float, ...]] = field(default_factory=dict)
    _channels: ChannelStats | None = None
    _channels_handle: Any = None

    def channels_for(self, qconfig: QConfig) -> ChannelStats | None:
        """Channel statistics of the float module where ``qconfig`` needs them, else None.

        Raises:
            LostWorkerError, CompilerError: a worker could not measure.
        """
        return self._channel_stats(qconfig) if qconfig.needs_channels else None

    def channels_handle(self, qconfig: QConfig) -> Any:
        """Channel statistics, needed or not, as the pool's handle of their arrays."""
        if self._channels_handle is None:
            self._channels_handle = self.pool.put(self._channel_stats(qconfig).to_arrays())
        return self._channels_handle

    def _channel_stats(self, qconfig: QConfig) -> ChannelStats:
        """They are the same for every configuration."""
        if self._channels is None:
            key = content_hash({**self.key, "variant": CHANNELS, "grams": self.grams})
            arrays = self._stored(CHANNELS, key)
            if arrays is None:
                await_workers(self.pool, self.progress)
                self.progress.phase("calibration of channels", (1 + self.grams) * len(self.samples))
                arrays, cpu_s = self._measure_channels(qconfig)
                self.worker_cpu_s += cpu_s
                self._keep(CHANNELS, key, arrays, cpu_s)
            self._channels = ChannelStats.from_arrays(arrays)
        return self._channels

    def _measure_channels(self, qconfig: QConfig) -> tuple[dict[str, NDArray[Any]], float]:
        results = self._results(0, qconfig, None)
        cpu_s = sum(result.cpu_s for result in results)
        merged = reduce(ChannelStats.merge, (ChannelStats.from_arrays(r.arrays) for r in results))
        arrays = merged.to_arrays()
        if self.grams:
            results = self._results(0, qconfig, None, self.pool.put(arrays))
            cpu_s += sum(result.cpu_s for result in results)
            shards = [InputGrams.from_arrays(result.arrays) for result in results]
            arrays |= reduce(InputGrams.merge, filter(None, shards)).to_arrays()
        return arrays, cpu_s

    def scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
        """Activation ranges in binding order; None for global_scale, which needs no data.

        Raises:
            CalibrationError: the statistics give no scale.
            LostWorkerError, CompilerError: a worker could not measure.
        """
        if qconfig.calibrate_mode == "global_scale":
            return None
        if not self.leaves_ranges:
            return ()
        if qconfig.calibrate_passes == 2:
            return self._second_scales(qconfig)
        variant, key = stored_keys(self.key, qconfig)
        if key not in self._scales:
            stored = self._stored(SCALES, key)
            if stored is None:
                statistics = self._statistics(variant, qconfig)
                begin = self.clock()
                scales = activation_scales(statistics, qconfig)
                spent = self.clock() - begin
                stored = {"scales": scales}
                self._keep(SCALES, key, stored, spent)
            self._scales[key] = tuple(float(scale) for scale in stored["scales"])
        return self._scales[key]

    def clipping_of(self, qconfig: QConfig) -> tuple[str, ...]:
        """What the ranges of ``scales_for`` cut off, where it is much, in sentences.

        Nothing is measured for it; of a second calibration no statistics are kept.
        """
        if qconfig.calibrate_mode == "global_scale" or qconfig.calibrate_passes == 2:
            return ()
        if not self.leaves_ranges:
            return ()
        variant, _ = stored_keys(self.key, qconfig)
        arrays = self._stored(STATISTICS, variant)
        if arrays is None:
            return ()
        statistics = self._stats.get(variant, lambda: CalibrationStats.from_arrays(arrays))
        scales = self.scales_for(qconfig)
        assert scales is not None
        return clipping_note(heavily_clipped(statistics, scales), qconfig.calibrate_mode)

    def _second_scales(self, qconfig: QConfig) -> tuple[float, ...] | None:
        """Ranges on the network that ``qconfig`` quantizes with those of the float network."""
        first = self.scales_for(qconfig.with_overrides(calibrate_passes=1))
        key = content_hash({**self.key, "variant": canonical_fields(qconfig.to_dict())})
        if key not in self._scales:
            stored = self._stored(SCALES, key)
            if stored is None:
                statistics, cpu_s = self._measure(qconfig, first)
                self.worker_cpu_s += cpu_s
                stored = {"scales": activation_scales(statistics, qconfig)}
                self._keep(SCALES, key, stored, cpu_s)
            self._scales[key] = tuple(float(scale) for scale in stored["scales"])
        return self._scales[key]

    def _statistics(self, variant: str, qconfig: QConfig) -> CalibrationStats:
        return self._stats.get(variant, lambda: self._stored_or_measured(variant, qconfig))

    def _stored_or_measured(self, variant: str, qconfig: QConfig) -> CalibrationStats:
        arrays = self._stored(STATISTICS, variant)
        if arrays is not None:
            return CalibrationStats.from_arrays(arrays)
        statistics, cpu_s = self._measure(qconfig)
        self.worker_cpu_s += cpu_s
        self._keep(STATISTICS, variant, statistics.to_arrays(), cpu_s)
        return statistics

    def _measure(
        self, qconfig: QConfig, ranges: tuple[float, ...] | None = None
    ) -> tuple[CalibrationStats, float]:
        """Both rounds on the float network, or with ``ranges`` on the one they quantize."""
        if qconfig.needs_channels:
            self.channels_handle(qconfig)
        await_workers(self.pool, self.progress)
        self.progress.phase("calibration", 2 * len(self.samples))
        reach, first_cpu_s = self._round(1, qconfig, None, ranges)
        merged = self.pool.put(reach.to_arrays())
        histograms, second_cpu_s = self._round(2, qconfig, merged, ranges)
        return histograms, first_cpu_s + second_cpu_s

    def _round(
        self, number: int, qconfig: QConfig, merged: Any, ranges: tuple[float, ...] | None
    ) -> tuple[CalibrationStats, float]:
        results = self._results(number, qconfig, merged, ranges=ranges)
        statistics = merge_stats(CalibrationStats.from_arrays(r.arrays) for r in results)
        return statistics, sum(result.cpu_s for result in results)

    def _results(
        self,
        number: int,
        qconfig: QConfig,
        merged: Any,
        channels: Any = None,
        ranges: tuple[float, ...] | None = None,
    ) -> list[CalibrationResult]:
        """Answers of all shards in order."""
        if number and qconfig.needs_channels:
            channels = self.channels_handle(qconfig)
        shards = self.samples.split(self.pool.num_workers)
        for index, shard in enumerate(shards):
            request = CalibrationRequest(
                blob=self.blob,
                qconfig=qconfig.to_dict(),
                dataset=self.dataset,
                samples=shard,
                round=number,
                merged=merged,
                percentiles=self.percentiles,
                channels=channels,
                ranges=ranges,
            )
            self.pool.submit(("calibration", number, index), request)
        results: dict[Hashable, CalibrationResult] = {}
        tags: list[Hashable] = [("calibration", number, index) for index in range(len(shards))]
        for tag, result in gather(self.pool, tags):
            results[tag] = result
            self.progress.advance(result.samples)
        return [results[tag] for tag in tags]

    def _stored(self, kind: str, key: str) -> dict[str, NDArray[Any]] | None:
        for artifact in self.repository.artifacts_by_key(kind, key):
            if self.artifacts.has(artifact.sha256):
                # Each study names what it reads, so that it outlives the one that measured.
                shared = replace(artifact, cpu_s=0.0)
                own = self.repository.artifacts_of(self.study_id, kind)
                if all(each.key != key for each in own):
                    self.repository.save_artifact(self.study_id, shared)
                return self.artifacts.get_arrays(artifact.sha256)
        return None

    def _keep(self, kind: str, key: str, arrays: Mapping[str, NDArray[Any]], cpu_s: float) -> None:
        artifact = self.artifacts.put_arrays({k: np.asarray(v) for k, v in arrays.items()})
        self.repository.save_artifact(
            self.study_id,
            StoredArtifact(kind, key, artifact.sha256, artifact.bytes, cpu_s),
        )


def stored_keys(key: Mapping[str, Any], qconfig: QConfig) -> tuple[str, str]:
    """Keys under which statistics and scales of one round of calibration are stored.

    Args:
        key: see ``Calibrator``.
    """
    variant = content_hash({**key, "variant": qconfig.calibration_fields()})
    fields = qconfig.to_dict()
    decides = {k: fields[k] for k in _SCALE_FIELDS}
    decides["layers"] = qconfig.layers.input_bits
    return variant, content_hash({"variant": variant, **decides})
