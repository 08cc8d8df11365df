"""Records of the repository: plain frozen values, no rows, no sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar

TrialState = Literal["waiting", "running", "complete", "pruned", "failed", "infeasible"]
StudyState = Literal["running", "paused", "complete", "stopped", "failed"]
CommandKind = Literal["pause", "resume", "stop", "try"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]

UNFINISHED: Final[tuple[TrialState, ...]] = ("waiting", "running")
FINISHED: Final[tuple[TrialState, ...]] = ("complete", "pruned", "failed", "infeasible")
REPEATABLE: Final[tuple[TrialState, ...]] = ("complete", "infeasible")
"""States that the same work would reach again; so would one that collapsed."""

SENSITIVITY: Final = "sensitivity"
GLOBAL: Final = "global"
LAYERS: Final = "layers"
STAGES: Final = (SENSITIVITY, GLOBAL, LAYERS)
"""Stages of a search, see ``qsearch.search.stages``."""
TRIED: Final = "tried"
"""In place of the stage: of trials that people asked for, which are evaluated first."""
TRIED_BATCH: Final = -1
"""Batch of such trials: they shift no batch of the sampler."""


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NewStudy:
    """A study to be created.

    Attributes:
        spec: everything that decides which trials are made and what they score. A run with another
            spec is another study.
        spec_hash: its canonical sha256.
    """

    name: str
    model_name: str
    model_sha256: str
    spec: Mapping[str, Any]
    spec_hash: str
    seed: int
    target_trials: int
    code_version: str


@dataclass(frozen=True, slots=True)
class Study(NewStudy):
    """A study as it is stored."""

    id: int
    state: StudyState
    stopped: str | None
    baseline: Mapping[str, Any] | None
    emitted: Mapping[str, Any] | None
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial to be queued.

    Attributes:
        number: position in the study, from 0.
        batch: which round of proposals it came from.
        params: what the sampler said, parameters without effect left out.
        qconfig: the whole configuration as plain values.
        config_hash: canonical sha256 of the configuration, unique in the study.
        work_hash: sha256 of all that decides the score: model, data, code, evaluator,
            configuration.
        stage: of the search it belongs to.
    """

    number: int
    batch: int
    params: Mapping[str, Any]
    qconfig: Mapping[str, Any]
    config_hash: str
    work_hash: str
    stage: str = GLOBAL


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in columns: what happened, where, how to fix it."""

    what: str
    where: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a trial.

    Attributes:
        score: metric name → value (fractions 0..1, dB); empty where there is none.
        samples: how many were scored.
        attempts: times it was started, drivers and workers that died included.
        seconds: wall time between submission and result.
        objective_values: the metric and the costs of the study, as they were measured.
    """

    state: TrialState
    score: Mapping[str, float | None] | None = None
    samples: int | None = None
    collapsed: bool = False
    outputs_sha256: str | None = None
    failure: Failure | None = None
    attempts: int = 1
    from_store: bool = False
    compile_cpu_s: float | None = None
    run_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    seconds: float | None = None
    objective_values: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(NewTrial):
    """A trial as it is stored.

    Attributes:
        driver_id: who holds its lease, or held it last.
        lost_workers: how many workers died on it.
    """

    id: int
    study_id: int
    outcome: Outcome
    created_at: float
    started_at: float | None
    finished_at: float | None
    driver_id: int | None = None
    lost_workers: int = 0

    @property
    def state(self) -> TrialState:
        """State of the trial."""
        return self.outcome.state

    @property
    def score(self) -> Mapping[str, float | None]:
        """The score; empty where the trial has none."""
        return self.outcome.score or {}

    @property
    def finished(self) -> bool:
        """Return whether nothing is left to be done."""
        return self.state in FINISHED


@dataclass(frozen=True, slots=True)
class Counts:
    """Trials of a study by state; ``from_store`` is a part of ``complete``."""

    waiting: int = 0
    running: int = 0
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    infeasible: int = 0
    from_store: int = 0

    @property
    def finished(self) -> int:
        """Number of trials that count towards ``--trials``."""
        return self.complete + self.pruned + self.failed + self.infeasible

    def report(self) -> dict[str, int]:
        """The counts as ``--json`` prints them."""
        return {name: getattr(self, name) for name in (*FINISHED, "from_store")}


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """File that a study keeps under a kind and a key, and the cost of making it."""

    kind: str
    key: str
    sha256: str
    bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a study's history."""

    id: int
    kind: str
    trial: int | None
    data: Mapping[str, Any] | None
    at: float


@dataclass(frozen=True, slots=True)
class Shard:
    """Result of one part of a trial's evaluation; ``shard`` counts from 0 to ``shards`` - 1."""

    shard: int
    shards: int
    samples: int
    sums: Mapping[str, Mapping[str, float]]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial that ended, as it is to be stored.

    Attributes:
        log: the end of the worker's log, where it explains a failure.
    """

    trial: Trial
    outcome: Outcome
    shards: tuple[Shard, ...] = ()
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Claims:
    """Trials a driver took: those it must run, and those that known work answered."""

    run: tuple[Trial, ...]
    answered: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """A process that drives, or drove, a study; ``state`` is running or ended."""

    id: int
    study_id: int
    name: str
    code_version: str
    workers: int
    state: str
    beat: int
    started_at: float
    beat_at: float


LISTENING_S: Final = 60.0
"""Seconds without a heartbeat after which a driver counts as dead."""


def listening(drivers: Iterable[DriverRecord], now: float | None = None) -> int:
    """The number of drivers that will read a command; ``now`` in seconds since 1970."""
    at = time.time() if now is None else now
    return sum(d.state == "running" and at - d.beat_at < LISTENING_S for d in drivers)


@dataclass(frozen=True, slots=True)
class News:
    """Figures by which a driver sees whether anybody else changed its study.

    Attributes:
        command: id of the newest command; 0 when there is none.
        next_number: number that follows the newest trial's.
        unfinished: trials that wait or run.
    """

    command: int
    next_number: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """Figures of one kind ("sensitivity", "calibration" …) about one layer."""

    kind: str
    layer: str
    position: int
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a search; ``state`` is planned, running, complete or skipped."""

    name: str
    position: int
    state: str
    planned: int | None = None
    data: Mapping[str, Any] | None = None
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the drivers of a study."""

    id: int
    kind: CommandKind
    at: float


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """The end of a log that explains something."""

    trial: int | None
    source: str
    excerpt: str
    at: float


@dataclass(frozen=True, slots=True)
class NewJob:
    """A study to be queued on a server.

    Attributes:
        server: name of the server's folder.
        settings: those of ``launch``, with hashes of uploads for files.
    """

    server: str
    name: str
    owner: str
    settings: Mapping[str, Any]
    trials: int


@dataclass(frozen=True, slots=True)
class Job(NewJob):
    """A job as it is stored.

    Attributes:
        attempts: drivers that died on it since one of them got on.
        pid: process of its driver, or of its last one.
        study_id: of the study that its driver made in a database of several studies.
        cancelled: its owner wants no more of it; its driver may still write the best so far.
        exit_code: that ``qsearch launch`` would have ended with.
    """

    id: int
    state: JobState
    attempts: int
    pid: int | None
    study_id: int | None
    cancelled: bool
    exit_code: int | None
    failure: Failure | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    retry_at: float | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a user uploaded; ``kind`` is its suffix."""

    sha256: str
    kind: str
    bytes: int
    created_at: float


# From rows to records ---------------------------------------------------------------------------


def names_of(kind: Any) -> tuple[str, ...]:
    """Field names of a record."""
    return tuple(kind.__dataclass_fields__)


def record_of(kind: type[R], row: Any, **given: Any) -> R:
    """A row as a record; fields that are not given are read by ``_READ``, or are columns."""
    left = (name for name in names_of(kind) if name not in given)
    return kind(**given, **{name: _READ.get(name, attrgetter(name))(row) for name in left})


def columns_of(record: Any) -> dict[str, Any]:
    """The fields of a record as values of the columns that ``record_of`` reads."""
    values = {name: getattr(record, name) for name in names_of(type(record))}
    if "failure" in values:
        values |= failure_columns(values.pop("failure"))
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}


def failure_of(row: Any) -> Failure | None:
    """The error in the columns of a row, if there is one."""
    if row.error_what:
        return Failure(row.error_what, row.error_where, row.error_fix)
    return None


def failure_columns(failure: Failure | None) -> dict[str, str | None]:
    """The columns that ``failure_of`` reads."""
    told = failure or Failure("")
    return {
        "error_what": told.what or None,
        "error_where": told.where,
        "error_fix": told.fix,
    }


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "outcome": lambda row: record_of(Outcome, row),
    "failure": failure_of,
    "objective_values": lambda row: row.objective_values and tuple(row.objective_values),
}
