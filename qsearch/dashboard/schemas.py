"""What the API answers, as OpenAPI describes it. Fractions are 0..1, times UTC seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qsearch.dashboard.security import without_passwords
from qsearch.store.records import Event, Stage
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure

LARGEST_ID = 2**63 - 1
"""What a column of ids holds."""

Score = dict[str, float | None]


class Out(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


class In(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ErrorOut(Out):
    """Why a request failed, and what to do."""

    what: str
    where: str | None = None
    fix: str | None = None


class MeasureOut(Out):
    """A figure that trials have; ``unit`` "%" stands for a stored fraction."""

    name: str
    words: str
    unit: str
    smaller_is_better: bool

    @classmethod
    def of(cls, measure: Measure) -> MeasureOut:
        """From the study's measure."""
        return cls(
            name=measure.name,
            words=measure.words,
            unit=measure.unit,
            smaller_is_better=measure.smaller_is_better,
        )


class StageOut(Out):
    """A stage of the search."""

    name: str
    state: str
    planned: int | None
    finished: int
    started_at: float | None
    finished_at: float | None

    @classmethod
    def of(cls, stage: Stage, finished: int) -> StageOut:
        """From the store, with how many of its trials ended."""
        return cls(
            name=stage.name,
            state=stage.state,
            planned=stage.planned,
            finished=finished,
            started_at=stage.started_at,
            finished_at=stage.finished_at,
        )


class DriverOut(Out):
    """A process that drives the study; ``silent_s`` is how long its heart did not beat."""

    name: str
    workers: int
    state: str
    silent_s: float


class BestOut(Out):
    """The winner so far; ``value`` is of the study's first measure.

    ``breaks`` names the limits that even the winner does not keep, as ``--max-drop``.
    """

    number: int
    value: float | None
    score: Score
    breaks: list[str]


class StudyOut(Out):
    """How a study stands.

    ``listening`` counts the drivers that will hear a command; ``silent`` says that there are some
    that did not leave and of which nothing is heard.
    """

    key: str
    name: str
    model: str
    state: str
    paused: bool
    stopped: str | None
    target_trials: int
    finished: int
    counts: dict[str, int]
    measure: MeasureOut
    best: BestOut | None
    baseline: Score | None
    rate_per_min: float
    listening: int
    silent: bool
    created_at: float
    updated_at: float
    version: int
    spark: list[float]


class StudyDetail(StudyOut):
    """A study with what does not fit into a list."""

    model_sha256: str
    storage: str
    seed: int
    code_version: str
    evaluator: str | None
    sampler: str | None
    accuracy_floor: float | None
    emitted: dict[str, Any] | None
    measures: list[MeasureOut]
    parameters: list[str]
    stages: list[StageOut]
    drivers: list[DriverOut]
    layer_kinds: list[str]
    has_module: bool
    last_event: int
    can_resume: bool


class StudiesPage(Out):
    """Studies, newest change first."""

    studies: list[StudyOut]
    total: int
    allow_launch: bool


class TrialRow(Out):
    """A trial in a table."""

    number: int
    state: str
    stage: str
    score: Score | None
    params: dict[str, Any]
    objective_values: list[float] | None
    samples: int | None
    seconds: float | None
    cpu_s: float | None
    attempts: int
    lost_workers: int
    from_store: bool
    finished_at: float | None
    error: str | None

    @classmethod
    def of(cls, point: TrialPoint) -> TrialRow:
        """From the snapshot."""
        row = cls.model_validate(point, from_attributes=True)
        if row.error is not None:
            row.error = without_passwords(row.error)
        return row


class TrialsPage(Out):
    """One page of trials: ``matched`` pass the filter, of ``total``."""

    rows: list[TrialRow]
    matched: int
    total: int
    offset: int


class ShardOut(Out):
    """What one part of a trial's evaluation found."""

    shard: int
    shards: int
    samples: int
    score: Score
    cpu_s: float


class LogOut(Out):
    """The end of a log."""

    source: str
    excerpt: str
    at: float


class TrialDetail(TrialRow):
    """All that is known of a trial.

    ``can_measure`` and ``has_ranges`` say that the files for its layers and ranges are here.
    """

    batch: int
    qconfig: dict[str, Any]
    config_hash: str
    work_hash: str
    outputs_sha256: str | None
    peak_rss_bytes: int | None
    created_at: float
    started_at: float | None
    error_where: str | None
    error_fix: str | None
    shards: list[ShardOut]
    logs: list[LogOut]
    is_best: bool
    can_measure: bool
    has_ranges: bool


class FailureOut(Out):
    """Trials that ended for the same reason."""

    state: str
    what: str
    count: int
    trials: list[int]


class LayerOut(Out):
    """Figures about one layer."""

    kind: str
    layer: str
    position: int
    figures: dict[str, Any]


class EventOut(Out):
    """A line of the study's history."""

    id: int
    kind: str
    trial: int | None
    data: dict[str, Any] | None
    at: float

    @classmethod
    def of(cls, event: Event) -> EventOut:
        """From the store."""
        data: Mapping[str, Any] | None = event.data
        return cls(
            id=event.id,
            kind=event.kind,
            trial=event.trial,
            data=None if data is None else dict(data),
            at=event.at,
        )


class CommandIn(In):
    """A wish for the drivers of a study."""

    kind: Literal["pause", "resume", "stop"]


class CommandOut(Out):
    """Who will hear it: none means that nobody searches this study now."""

    kind: str
    listening: int


class SessionIn(In):
    """The token, once, for a cookie."""

    token: Annotated[str, Field(max_length=1024)]


class UploadOut(Out):
    """An uploaded file that was read and can be used."""

    upload: str
    kind: Literal["onnx", "npz"]
    bytes: int
    about: dict[str, Any]


class LaunchIn(In):
    """A search to start."""

    model: Annotated[str, Field(pattern="^(digits|[0-9a-f]{64})$")]
    name: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    calib: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    eval: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    trials: Annotated[int, Field(ge=1, le=100_000)] = 32
    max_drop: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?%?$")] = "1%"
    metric: Literal["top1", "agreement", "sqnr"] | None = None
    sampler: Literal["auto", "tpe", "nsga2", "random", "grid"] = "auto"
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0


class LaunchOut(Out):
    """A search that was started."""

    name: str
    pid: int
