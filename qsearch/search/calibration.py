"""Calibration of a study: the workers measure, the study keeps what they find.

The order of the measurements is ``compiler.quantize.Calibration``'s. Statistics and scales are
artefacts of the study, so a resumed search does not measure again; nor does another study of the
storage that reads the same folder of artefacts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, ChannelStats, PredictedError
from compiler.quantize.calibration.measurement import Measurement, Statistics
from compiler.quantize.calibration.statistics_store import (
    CHANNELS,
    SCALES,
    STATISTICS,
    Storable,
    channel_fields,
    scale_fields,
    statistics_fields,
)
from qsearch.data import content_hash
from qsearch.search.context import PreparedStudy, StudyArtifacts, StudyContext
from qsearch.search.evaluations import await_workers, run_requests
from qsearch.search.objectives import Objective
from qsearch.search.space import (
    NEUTRAL,
    PERCENTILES,
    Params,
    Space,
    canonical_fields,
    to_qconfig,
)
from qsearch.search.stages import GLOBAL
from qsearch.search.surrogate import EarlierStudy
from workers.messages import CalibrationRequest, CalibrationResult, DatasetRef, Range

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
    samples: Range
    worker_cpu_s: float = 0.0
    """CPU seconds that workers spent on it in this run."""
    _handles: dict[ChannelStats, Any] = field(default_factory=dict)

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        """Statistics of every shard.

        Raises:
            LostWorkerError, CompilerError: a worker could not measure.
        """
        await_workers(self.context.pool, self.context.progress)
        self.context.progress.phase(phase_of(measurement), len(self.samples))
        merged, channels = measurement.merged, measurement.channels
        whole = CalibrationRequest(
            blob=self.blob,
            qconfig=measurement.qconfig.to_dict(),
            dataset=self.dataset,
            samples=self.samples,
            step=measurement.step,
            merged=None if merged is None else self.context.pool.put(merged.to_arrays()),
            percentiles=measurement.percentiles,
            channels=None if channels is None else self.channels_handle(channels),
            counted=measurement.counted,
        )
        shards = self.samples.split(self.context.pool.num_workers)
        requests = [replace(whole, samples=shard) for shard in shards]
        name = f"calibration, {whole.step}"
        results = run_requests(self.context.pool, requests, name, self._note)
        return [measurement.read(result.arrays) for result in results]

    def channels_handle(self, channels: ChannelStats) -> Any:
        """Channel statistics as the pool's handle of their arrays, put there once."""
        if channels not in self._handles:
            self._handles[channels] = self.context.pool.put(channels.to_arrays())
        return self._handles[channels]

    def _note(self, result: CalibrationResult) -> None:
        self.worker_cpu_s += result.cpu_s
        self.context.progress.advance(result.samples)


_PASSES: Final = {
    "channels": "channels",
    "sample": "a sample of the inputs",
    "ranges": "pass 1 of 2, ranges",
    "histograms": "pass 2 of 2, histograms",
}


def phase_of(measurement: Measurement) -> str:
    """What a pass over the data measures, and why the data are read again."""
    told = f"calibration: {_PASSES.get(measurement.step, measurement.step)}"
    if measurement.step not in ("ranges", "histograms"):
        return told
    qconfig = measurement.qconfig
    if qconfig.smooth_alpha is not None:
        return f"{told}; again, because smoothing by {qconfig.smooth_alpha:g} changes the weights"
    if qconfig.equalize:
        return f"{told}; again, because equalization changes the weights"
    return told


@dataclass(slots=True)
class StoredStatistics:
    """Statistics and scales among the artefacts of a study.

    Args:
        artifacts: where they are kept.
        key: all that decides the statistics beside the QConfig (module, data, code, percentiles).
        data: what measures them; its CPU seconds are noted beside them.
        clock: our own CPU seconds, which are noted where no worker took part.
    """

    artifacts: StudyArtifacts
    key: Mapping[str, Any]
    data: PooledData
    clock: Callable[[], float] = time.process_time
    _since: tuple[float, float] = (0.0, 0.0)

    def load(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, NDArray[Any]] | None:
        """Arrays that this study or another one of the storage kept."""
        self._since = (self.data.worker_cpu_s, self.clock())
        key = stored_key(self.key, kind, fields)
        rows, study_id = self.artifacts.repository, self.artifacts.study_id
        for artifact in rows.artifacts_by_key(kind, key):
            if self.artifacts.files.has(kind, artifact.sha256):
                # Each study names what it reads, so that it outlives the one that measured.
                own = rows.artifacts_of(study_id, kind)
                if all(each.key != key for each in own):
                    rows.save_artifact(study_id, replace(artifact, cpu_s=0.0))
                return self.artifacts.files.get_arrays(kind, artifact.sha256)
        return None

    def save(self, kind: str, fields: Mapping[str, Any], found: Storable) -> None:
        """Store arrays, with the CPU seconds since ``load`` was asked or the last ``save``."""
        workers, own = self._since
        cpu_s = self.data.worker_cpu_s - workers or self.clock() - own
        self._since = (self.data.worker_cpu_s, self.clock())
        key = stored_key(self.key, kind, fields)
        self.artifacts.keep(kind, key, found.to_arrays(), cpu_s)


def statistics_key(spec: Mapping[str, Any], code: str) -> dict[str, Any]:
    """What decides the statistics of a study with this spec, beside the QConfig.

    Args:
        code: version of the code that measured.
    """
    key = {
        "module": spec["module_sha256"],
        "calib": spec["calib_sha256"],
        "code": code,
        "percentiles": list(spec["percentiles"]),
    }
    return {**key, "imports": spec["imports"]} if "imports" in spec else key


def stored_key(key: Mapping[str, Any], kind: str, fields: Mapping[str, Any]) -> str:
    """The key of the arrays that these fields of a QConfig decide.

    Args:
        key: as of ``StoredStatistics``.
    """
    if kind != SCALES:
        return content_hash({**key, **fields})
    if len(fields) == 1:  # of a second calibration: the whole configuration decides
        return content_hash({**key, "variant": canonical_fields(fields["variant"])})
    return content_hash({**fields, "variant": content_hash({**key, "variant": fields["variant"]})})


def stored_keys(key: Mapping[str, Any], qconfig: QConfig) -> tuple[str, str, str]:
    """Keys of the statistics, of the scales and of the channel statistics of a configuration."""
    return (
        stored_key(key, STATISTICS, statistics_fields(qconfig)),
        stored_key(key, SCALES, scale_fields(qconfig)),
        stored_key(key, CHANNELS, channel_fields(qconfig.weight_rounding)),
    )


CHOSEN: Final = "chosen"
"""Kind of the event that holds what a study begins with, and why."""
FIRST_EVENTS: Final = 20
"""Events among which those are that a search begins with."""
_STUDIES: Final = 4
_TRIALS: Final = 12
"""Trials of an earlier study that are carried over: its best."""
_ALIKE: Final = 0.5
"""Least similarity of operators from which a study is carried over."""


_NONE_SIMILAR: Final = (
    "warm start: no similar study with metric {} in this storage; --storage names one for all"
)


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """What a study begins with; later studies in the store do not change it.

    Attributes:
        qconfig: what the statistics suggest.
        told: why, and what is carried over, in sentences.
        operators: calls of the float model by operator, for later studies.
        earlier: trials of similar studies of the store.
    """

    qconfig: QConfig | None = None
    told: tuple[str, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    earlier: tuple[EarlierStudy, ...] = ()

    @staticmethod
    def stored(repository: Repository, study_id: int) -> FirstChoice | None:
        """The choice that the store holds for a study; None if the study began without one."""
        for event in repository.events_of(study_id, limit=FIRST_EVENTS):
            if event.kind == CHOSEN and event.data:
                row = event.data
                return FirstChoice(
                    QConfig.from_dict(row["qconfig"]),
                    tuple(row["decisions"]),
                    row.get("operators", {}),
                    tuple(map(EarlierStudy.from_dict, row.get("earlier", ()))),
                )
        return None

    @staticmethod
    def of(context: StudyContext, prepared: PreparedStudy, calibration: Calibration) -> FirstChoice:
        """The stored choice; for a new study it is made, stored and printed.

        Nothing for a study that began without it, and where no trial measures channels.
        """
        module, space, warm_start = prepared.module, prepared.space, prepared.settings.warm_start
        rows, study_id = context.repository, context.study_id
        known = FirstChoice.stored(rows, study_id)
        names = {parameter.name for parameter in space.parameters}
        if known is not None or "bias_correction" not in names or rows.trials_of(study_id):
            return known or FirstChoice()
        qconfig, decisions = calibration.choose()
        calls = (node.op for node in nodes_of(module["main"]) if isinstance(node, Call))
        operators = Counter(op.name for op in calls if isinstance(op, Op))
        told = [str(decision) for decision in decisions]
        earlier: tuple[EarlierStudy, ...] = ()
        if warm_start:
            earlier = _similar(context, operators, space, prepared.objective)
            told += [f"warm start: {study}" for study in earlier]
            told += [] if earlier else [_NONE_SIMILAR.format(prepared.metric)]
        data = {
            "qconfig": qconfig.to_dict(),
            "decisions": told,
            "operators": dict(operators),
            "earlier": [study.to_dict() for study in earlier],
        }
        rows.add_event(study_id, CHOSEN, data=data)
        for reason in told:
            context.progress.message(f"first trials: {reason}")
        return FirstChoice(qconfig, tuple(told), operators, earlier)


@dataclass(slots=True, eq=False)
class Prediction:
    """What the statistics predict of points: the prior of the surrogate.

    Args:
        calibration, module: of the study.
        measured: a configuration whose statistics the first trials need anyway.
        start: configuration that points change.
    """

    calibration: Calibration
    module: IRModule
    measured: QConfig
    start: QConfig
    _predicted: PredictedError | None = None
    _known: dict[tuple[tuple[str, Any], ...], float] = field(default_factory=dict)

    def __call__(self, point: Mapping[str, Any]) -> float:
        """Predicted SQNR in dB."""
        key = tuple(point.items())
        if key not in self._known:
            if self._predicted is None:
                stats = self.calibration.stats_for(self.measured)
                self._predicted = PredictedError(self.module, stats)
            self._known[key] = self._predicted.sqnr_db(to_qconfig(point, self.start))
        return self._known[key]


def _similar(
    context: StudyContext, operators: Mapping[str, int], space: Space, objective: Objective
) -> tuple[EarlierStudy, ...]:
    """The most similar studies of the store, with their best trials."""
    found = []
    for study in context.repository.studies():
        if study.id == context.study_id or study.spec.get("metric") != objective.metric:
            continue
        first = FirstChoice.stored(context.repository, study.id)
        alike = 0.0 if first is None else similarity(operators, first.operators)
        if alike >= _ALIKE:
            found.append((alike, study))
    found.sort(key=lambda pair: (-pair[0], -pair[1].id))
    earlier = []
    for alike, study in found[:_STUDIES]:
        trials = context.repository.trials_of(study.id, states=["complete"])
        scored = []
        for trial in trials:
            score = trial.outcome.score
            point = carried_point(space, trial.params)
            if trial.stage == GLOBAL and score and point is not None and objective.feasible(score):
                scored.append((objective.ranking(score), -trial.number, point))
        scored.sort(key=lambda row: row[:2], reverse=True)
        best = scored[:_TRIALS]
        if best:
            points, scores = tuple(row[2] for row in best), tuple(row[0] for row in best)
            earlier.append(EarlierStudy(study.name, alike, points, scores))
    return tuple(earlier)


def similarity(operators: Mapping[str, int], others: Mapping[str, int]) -> float:
    """Similarity of two models, 0 to 1: the overlap of their shares of operators."""
    mine, theirs = sum(operators.values()), sum(others.values())
    if not mine or not theirs:
        return 0.0
    names = {*operators, *others}
    return sum(min(operators.get(n, 0) / mine, others.get(n, 0) / theirs) for n in names)


def carried_point(space: Space, params: Mapping[str, Any]) -> Params | None:
    """The point of this space that equals a trial of another study; None if there is none."""
    point = space.effective({**NEUTRAL, **params})
    choices = {parameter.name: parameter.choices for parameter in space.parameters}
    inside = all(value in choices[name] for name, value in point.items())
    # Models without residual sums have no bits of them.
    return point if inside and not (point.keys() ^ params.keys()) - NEUTRAL.keys() else None


_VARIANTS: Final = 12
"""The number of networks that are measured before a trial asks for them."""
_FREE: Final = ("centre", "through_concat")
_MEASURED_TOGETHER: Final = ("smooth_alpha", "equalize", "residual_bits", *_FREE)


def variants_of(space: Space) -> list[Params]:
    """What points of the space ask for of the fields whose statistics are taken together."""
    kept = tuple(
        replace(p, when=tuple(one for one in p.when if one[0] in _MEASURED_TOGETHER))
        for p in space.parameters
        if p.name in _MEASURED_TOGETHER
    )
    return list(islice(Space(kept).points(), _VARIANTS)) if kept else []


def percentiles_of(space: Space) -> list[float]:
    """The percentiles that calibration must measure: those of the space and the usual ones."""
    asked = [p.choices for p in space.parameters if p.name == "percentile"]
    found = {float(value) for choices in asked for value in choices if value is not None}
    return sorted(found.union(PERCENTILES))
