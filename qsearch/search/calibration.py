"""Calibration of a study: the workers measure, the study keeps what they find.

The order of the measurements is ``compiler.quantize.Calibration``'s. Statistics and scales are
artefacts of the study, so a resumed search does not measure again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from compiler.qtypes.layer_choices import SUMS, WIDE_BITS, LayerChoices
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, ChannelStats
from compiler.quantize.calibration.collectors import DEFAULT_PERCENTILES
from compiler.quantize.calibration.measurement import Measurement, Statistics
from compiler.quantize.calibration.statistics_store import (
    CHANNELS,
    SCALES,
    STATISTICS,
    Arrays,
    channel_fields,
    scale_fields,
    statistics_fields,
)
from qsearch.data.prepared_data import content_hash
from qsearch.search.context import PreparedStudy, StudyArtifacts, StudyContext
from qsearch.search.running_trials import await_workers, run_requests
from qsearch.search.space import Params, Space, input_parameter
from workers.messages import CalibrationRequest, CalibrationResult, DatasetRef, split_range
from workers.metrics.size import fields_of

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

MEASUREMENTS = (CHANNELS, STATISTICS, SCALES)
"""Kinds of artefacts that calibration leaves."""


@dataclass(slots=True)
class PooledData:
    """The calibration data of a study, which its workers read shard by shard.

    Args:
        context: whose pool runs the model; the pool is idle while something is measured.
        blob: the float module, or the pool's handle of it.
        dataset, samples: calibration inputs.
    """

    context: StudyContext
    blob: Any
    dataset: DatasetRef
    samples: range
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on it in this run."""

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        """Statistics of every shard.

        Raises:
            LostWorkerError, CompilerError: a worker could not measure.
        """
        await_workers(self.context.pool, self.context.progress)
        self.context.progress.phase(phase_of(measurement), len(self.samples))
        merged = measurement.merged
        channels = measurement.channels
        whole = CalibrationRequest(
            blob=self.blob,
            dataset=self.dataset,
            samples=self.samples,
            measurement=replace(measurement, channels=None, merged=None),
            merged=None if merged is None else self.context.pool.put(merged.to_arrays()),
            channels=None if channels is None else self.channels_handle(channels),
        )
        shards = split_range(self.samples, self.context.pool.num_workers)
        requests = [replace(whole, samples=shard) for shard in shards]
        name = f"calibration, {measurement.step}"
        results = run_requests(self.context.pool, requests, name, self._note)
        return [measurement.read(result.arrays) for result in results]

    def channels_handle(self, channels: ChannelStats) -> Any:
        """Channel statistics as the pool's handle of their arrays."""
        return self.context.pool.put(channels.to_arrays())

    def _note(self, result: CalibrationResult) -> None:
        self.worker_cpu_s += result.cpu_s
        self.context.progress.advance(result.samples)


_PASSES: Final = {
    "sample": "a sample of the inputs",
    "ranges": "pass 1 of 2, ranges",
    "histograms": "pass 2 of 2, histograms",
}


def phase_of(measurement: Measurement) -> str:
    """Name the measurements of a pass over the data, and the reason to read the data again."""
    told = f"calibration: {_PASSES.get(measurement.step, measurement.step)}"
    alpha = measurement.qconfig.smooth_alpha
    if measurement.step not in ("ranges", "histograms") or alpha is None:
        return told
    return f"{told}; again, because smoothing by {alpha:g} changes the weights"


@dataclass(slots=True)
class StoredStatistics:
    """Statistics and scales among the artefacts of a study.

    Args:
        artifacts: where they are kept.
        key: all that decides the statistics beside the QConfig (module, data, code, percentiles).
        data: what measures them; its CPU seconds are noted beside them, or our own where no worker
            took part. None keeps nothing: a reader changes no study.
    """

    artifacts: StudyArtifacts
    key: Mapping[str, Any]
    data: PooledData | None = None
    _since: tuple[float, float] = (0.0, 0.0)

    def load(self, kind: str, fields: Mapping[str, Any]) -> Arrays | None:
        """Arrays that this study kept."""
        self._since = self._spent()
        return self.artifacts.arrays(kind, stored_key(self.key, fields))

    def save(self, kind: str, fields: Mapping[str, Any], arrays: Arrays) -> None:
        """Store arrays, with the CPU seconds since ``load`` was asked or the last ``save``."""
        if self.data is None:
            return
        before = self._since
        self._since = self._spent()
        workers, own = (now - then for now, then in zip(self._since, before, strict=True))
        key = stored_key(self.key, fields)
        self.artifacts.keep(kind, key, arrays, workers or own)

    def _spent(self) -> tuple[float, float]:
        """CPU seconds of workers and of this process."""
        return (self.data.worker_cpu_s if self.data else 0.0), time.process_time()


def statistics_key(spec: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Return the fields that decide the statistics of a study with this spec, beside the QConfig.

    Without a model and data, as of a study that never began, it is no statistics' key.

    Args:
        code: version of the code that measured.
    """
    key = {
        "module": spec.get("module_sha256"),
        "calib": spec.get("calib_sha256"),
        "code": code,
        "percentiles": list(spec.get("percentiles", ())),
    }
    if "imports" in spec:
        return {**key, "imports": spec["imports"]}
    return key


def stored_key(key: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """The key of the arrays that these fields of a QConfig decide.

    Args:
        key: as of ``StoredStatistics``.
    """
    return content_hash({**key, **fields})


def stored_keys(key: Mapping[str, Any], qconfig: QConfig) -> tuple[str, str, str]:
    """Keys of the statistics, of the scales and of the channel statistics of a configuration."""
    return (
        stored_key(key, statistics_fields(qconfig)),
        stored_key(key, scale_fields(qconfig)),
        stored_key(key, channel_fields(qconfig.sequential)),
    )


CHOSEN: Final = "chosen"
"""Kind of the event that holds what a study begins with, and why."""


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """Start of a study: its configuration, with the reasons.

    Attributes:
        qconfig: what the statistics suggest.
        told: reasons, in sentences.
    """

    qconfig: QConfig | None = None
    told: tuple[str, ...] = ()

    @staticmethod
    def stored(repository: Repository, study_id: int) -> FirstChoice | None:
        """The choice that the store holds for a study; None if the study began without one."""
        for event in repository.events_of(study_id, kind=CHOSEN):
            row = event.data or {}
            return FirstChoice(QConfig.from_dict(row["qconfig"]), tuple(row["decisions"]))
        return None

    @staticmethod
    def of(context: StudyContext, prepared: PreparedStudy, calibration: Calibration) -> FirstChoice:
        """The stored choice; for a new study it is made, stored and printed.

        Nothing for a study that began without it, and where no trial measures channels.
        """
        rows = context.repository
        study_id = context.study.id
        known = FirstChoice.stored(rows, study_id)
        names = {parameter.name for parameter in prepared.space.parameters}
        if known is not None or "weight_rounding" not in names or rows.trials_of(study_id):
            return known or FirstChoice()
        qconfig, decisions = calibration.choose()
        asked = fields_of(prepared.settings.for_, prepared.settings.assume_vnni)
        start = prepared.start.to_dict()
        qconfig = qconfig.with_overrides(**{name: start[name] for name in asked})
        told = [str(decision) for decision in decisions if decision.field not in asked]
        data = {"qconfig": qconfig.to_dict(), "decisions": told}
        rows.add_event(study_id, CHOSEN, data=data)
        for reason in told:
            context.progress.message(f"first trials: {reason}")
        return FirstChoice(qconfig, tuple(told))


_VARIANTS: Final = 12
"""The number of networks that are measured before a trial asks for them."""
_WIDE_SUMS: Final = input_parameter(SUMS)
_MEASURED_TOGETHER: Final = ("smooth_alpha", _WIDE_SUMS)


def variants_of(space: Space) -> list[dict[str, Any]]:
    """Return the values of points of the space in the fields whose statistics are taken
    together."""
    kept = tuple(
        replace(p, when=tuple(one for one in p.when if one[0] in _MEASURED_TOGETHER))
        for p in space.parameters
        if p.name in _MEASURED_TOGETHER
    )
    points = islice(Space(kept).points(), _VARIANTS) if kept else []
    return [_variant(point) for point in points]


def _variant(point: Params) -> dict[str, Any]:
    """Fields of a QConfig for ``Calibration``."""
    fields: dict[str, Any] = {name: value for name, value in point.items() if name != _WIDE_SUMS}
    if _WIDE_SUMS in point:
        fields["layers"] = LayerChoices().with_sums(point[_WIDE_SUMS] == WIDE_BITS)
    return fields


def percentiles_of(space: Space) -> list[float]:
    """The percentiles that calibration must measure: those of the space and the usual ones."""
    asked = [p.choices for p in space.parameters if p.name == "percentile"]
    found = {float(value) for choices in asked for value in choices if value is not None}
    return sorted(found.union(DEFAULT_PERCENTILES))
