"""Measurement: one reading of the calibration data, and how a process that holds the data does it.

    step         network that runs                      statistics
    channels     the float module                       ChannelStats
    sample       none                                   InputSample
    ranges       the profile function of a QConfig      CalibrationStats, round 1
    histograms   the same                               CalibrationStats, over the merged ranges

Statistics of shards merge exactly, so it does not matter where the data lie. ``CalibrationData`` is
what ``Calibration`` reads them through: ``LocalData`` runs the network in this process, a service
sends each Measurement to the workers that hold the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.garbage import collector_rests, give_back_memory
from compiler.ir.module import IRModule
from compiler.lru_cache import LRUCache
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.input_sample import InputSample
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.channel_stats import ChannelCollector, ChannelStats
from compiler.quantize.calibration.collect_stats import (
    ExecutorFactory,
    float_executor,
    no_data,
    profile_outputs,
)
from compiler.quantize.calibration.collectors import (
    DEFAULT_PERCENTILES,
    HistogramCollector,
    RangeCollector,
)
from compiler.quantize.calibration.input_sample import sample_inputs
from compiler.quantize.calibration.kept_batches import Batch, repeatable
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.calibration.stats import CalibrationStats, PointMap
from compiler.quantize.candidate import mark
from compiler.quantize.smoothing.rescaled_tensors import CountedTensor, counted_points
from compiler.runtime.executor import Executor

Step = Literal["channels", "sample", "ranges", "histograms"]
Statistics = ChannelStats | InputSample | CalibrationStats
S = TypeVar("S", ChannelStats, InputSample, CalibrationStats)
CHANNEL_STEPS: Final = ("channels", "sample")
"""Steps that do not depend on a QConfig."""

Ranges = tuple[float, ...]
"""Ranges S of the quantize points, in binding order; ``activation_scales`` makes them."""

Mark = Callable[[IRModule, QConfig, ChannelStats | None], tuple[IRModule, QuantizeContext]]
"""Partitions and annotates; ``mark`` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One reading of the calibration data.

    Attributes:
        step: what is counted.
        qconfig: chooses the quantize points; the step "channels" does not look at it.
        percentiles: fractions whose order statistics "histograms" collects.
        channels: where ``qconfig.needs_channels``.
        merged: for "histograms": the merged statistics of "ranges".
        counted: for "ranges" and "histograms": tensors to count; None counts each as it is.
    """

    step: Step
    qconfig: QConfig
    percentiles: tuple[float, ...] = DEFAULT_PERCENTILES
    channels: ChannelStats | None = None
    merged: CalibrationStats | None = None
    counted: tuple[CountedTensor, ...] | None = None

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> Statistics:
        """The statistics of this step from the arrays that their ``to_arrays`` made.

        Raises:
            CalibrationError: the arrays hold others.
        """
        if self.step == "channels":
            return ChannelStats.from_arrays(arrays)
        if self.step == "sample":
            sample = InputSample.from_arrays(arrays)
            if sample is None:
                raise CalibrationError("the arrays hold no sample of the inputs")
            return sample
        return CalibrationStats.from_arrays(arrays)


@runtime_checkable
class CalibrationData(Protocol):
    """Source of batches: all shards of one calibration set."""

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        """Statistics of every shard, one at least.

        Raises:
            CalibrationError: there are no data, they do not fit, or values are not finite.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The network of one configuration, ready to run; both rounds of calibration share it."""

    _executor: Executor
    _points: PointMap

    @staticmethod
    @collector_rests
    def of(
        mod: IRModule,
        measurement: Measurement,
        executor: ExecutorFactory = float_executor,
        mark: Mark = mark,
    ) -> Profile:
        """The network that the steps "ranges" and "histograms" of a measurement run.

        Args:
            mod: result of ``prerequisite_optimize``.
            executor: makes what runs it.
        Raises:
            CalibrationError: channels are missing.
            InternalQuantizeError: there is nothing to measure.
        """
        annotated, _ = mark(mod, measurement.qconfig, measurement.channels)
        network, points = profile_function(annotated)
        return Profile(executor(network), points)

    def measure(self, measurement: Measurement, batches: Iterable[Batch]) -> CalibrationStats:
        """Statistics of one shard.

        Raises:
            CalibrationError: no batch, one lacks an input, values are not finite, or the merged
                ranges are missing.
        """
        collector = self._collector(measurement)
        _run(self._executor, collector_rests(collector.update), batches, measurement.counted)
        return collector_rests(collector.result)()

    @collector_rests
    def _collector(self, measurement: Measurement) -> RangeCollector | HistogramCollector:
        if measurement.step == "ranges":
            points = counted_points(self._points, measurement.counted)
            return RangeCollector(points)
        if measurement.merged is None:
            raise CalibrationError(
                "histograms need the merged ranges of all shards",
                fix='measure the step "ranges" first and merge what all shards give',
            )
        return HistogramCollector(measurement.merged, measurement.percentiles)


def measure_channels(
    mod: IRModule,
    measurement: Measurement,
    batches: Iterable[Batch],
    executor: ExecutorFactory = float_executor,
) -> ChannelStats | InputSample:
    """Statistics of the steps "channels" and "sample" of one shard.

    Args:
        mod: result of ``prerequisite_optimize``.
    Raises:
        CalibrationError: no operator has a constant weight, or as for ``Profile.measure``.
    """
    if measurement.step == "sample":
        return sample_inputs(mod, batches)
    collector = ChannelCollector(mod)
    _run(executor(collector.profile), collector.update, batches)
    return collector.result()


class LocalData:
    """Batches in this process; a network stays ready from its ranges to its histograms.

    Args:
        mod: result of ``prerequisite_optimize``.
        dataset: batches (input name → array); what can be read only once is kept.
        executor: makes what runs the network.
        mark: partitions and annotates.
    """

    def __init__(
        self,
        mod: IRModule,
        dataset: Iterable[Batch],
        executor: ExecutorFactory = float_executor,
        *,
        mark: Mark = mark,
    ) -> None:
        self._mod = mod
        self._dataset = dataset
        self._executor = executor
        self._mark = mark
        self._profiles: LRUCache[Profile] = LRUCache(1)

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        """One shard."""
        self._dataset = repeatable(self._dataset)
        found: Statistics
        if measurement.step in CHANNEL_STEPS:
            found = measure_channels(self._mod, measurement, self._dataset, self._executor)
        else:
            key = (measurement.qconfig, measurement.channels)
            made = partial(Profile.of, self._mod, measurement, self._executor, self._mark)
            found = self._profiles.get(key, made).measure(measurement, self._dataset)
        if measurement.step == "histograms":
            self._profiles.clear()  # the last that is measured of it
        give_back_memory()
        return [found]


def _merged(data: CalibrationData, measurement: Measurement, kind: type[S]) -> S:
    """The statistics of all shards."""
    shards = (one for one in data.collect(measurement) if isinstance(one, kind))
    return reduce(kind.merge, shards)


def merged_channels(data: CalibrationData, qconfig: QConfig) -> ChannelStats:
    """Channels of all shards."""
    return _merged(data, Measurement("channels", qconfig), ChannelStats)


def with_sample(data: CalibrationData, qconfig: QConfig, channels: ChannelStats) -> ChannelStats:
    """``channels`` with a sample of the inputs, of all shards."""
    return replace(channels, sample=_merged(data, Measurement("sample", qconfig), InputSample))


def merged_points(data: CalibrationData, reading: Measurement) -> CalibrationStats:
    """Ranges of all shards, then histograms over them.

    Args:
        reading: what is measured; its step and ``merged`` are set here.
    """
    merged = _merged(data, replace(reading, step="ranges"), CalibrationStats)
    return _merged(data, replace(reading, step="histograms", merged=merged), CalibrationStats)


def channel_stats(
    mod: IRModule,
    dataset: Iterable[Batch],
    executor: ExecutorFactory = float_executor,
    *,
    sample: bool = False,
) -> ChannelStats:
    """Channel statistics of a prepared float module over a dataset.

    Args:
        mod: result of ``prerequisite_optimize``.
        dataset: read once, and once more for ``sample``.
        sample: keep some of the inputs too, for a QConfig that is ``sequential``.

    Raises:
        CalibrationError: the dataset is empty or lacks an input, values are not finite, or the
            module has no weighted operator.
    """
    data = LocalData(mod, dataset, executor)
    channels = merged_channels(data, QConfig())
    if sample:
        return with_sample(data, QConfig(), channels)
    return channels


def calibration_stats(
    mod: IRModule,
    dataset: Iterable[Batch],
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    executor: ExecutorFactory = float_executor,
) -> CalibrationStats:
    """Statistics of an annotated module over a dataset, in memory independent of its length.

    Args:
        mod: result of QuantizeAnnotate.
        dataset: batches, iterated twice.
        percentiles: fractions that calibrate_mode "percentile" may ask for later.
        executor: makes what runs the float network.
    Raises:
        CalibrationError: the dataset is empty or lacks an input, or values are not finite.
    """
    run = QuantizeContext()
    data = LocalData(mod, dataset, executor, mark=lambda *_: (mod, run))
    return merged_points(data, Measurement("ranges", QConfig(), tuple(percentiles)))


def _run(
    executor: Executor,
    update: Callable[[Any], None],
    batches: Iterable[Batch],
    counted: Sequence[CountedTensor] | None = None,
) -> None:
    """Stream the outputs of a network, or what is counted of them, into a collector.

    Raises:
        CalibrationError: there is no batch.
    """
    empty = True
    for outputs in profile_outputs(executor, batches):
        if counted is None:
            update(outputs)
        else:  # one after the other, so that what is made is counted while it is in cache
            update(each.of(outputs) for each in counted)
        empty = False
    if empty:
        raise no_data()
