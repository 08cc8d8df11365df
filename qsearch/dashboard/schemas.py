"""Answers of the API, as OpenAPI describes them. Fractions are 0..1, times UTC seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from qsearch.masking import masked, masked_values
from qsearch.server.uploads import HIDDEN
from qsearch.store.records import (
    DriverRecord,
    Event,
    LayerFigures,
    LogExcerpt,
    Shard,
    Stage,
    Study,
    Trial,
)
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure

API_VERSION = "2.0"
"""Version of the API in OpenAPI: the first figure changes with what a client relies on."""
_TAG = rf"^[^\s{HIDDEN}]{{1,40}}$"
LARGEST_ID = 2**63 - 1
"""Largest value of a column of ids."""

Score = dict[str, float | None]
Masked = Annotated[str, AfterValidator(masked)]
"""A text of an error or a log, without the passwords in its URLs."""


class Out(BaseModel):
    """An answer; a subclass ``of=Record`` shows the named fields of a record beside its own."""

    model_config = ConfigDict(extra="forbid")

    def __init_subclass__(cls, of: Any = None, shows: str = "", **more: Any) -> None:
        """Take the fields of a record over, before pydantic reads the annotations."""
        super().__init_subclass__(**more)
        own = cls.__annotations__
        kinds = {} if of is None else get_type_hints(of)
        cls.__annotations__ = {name: kinds[name] for name in shows.split()} | own

    @classmethod
    def of(cls, record: Any, **given: Any) -> Self:
        """From a record; fields that are not given are those of the same names."""
        names = cls.model_fields.keys() - given.keys()
        return cls(**given, **{name: getattr(record, name) for name in names})


class In(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ErrorOut(Out):
    """Failure of a request: its cause, and a cure."""

    what: Masked
    where: Masked | None = None
    fix: Masked | None = None


class MeasureOut(Out, of=Measure, shows="name unit smaller_is_better infinite meaning"):
    """A figure that trials have; ``unit`` "%" stands for a stored fraction."""

    words: str


class StageOut(Out, of=Stage, shows="name state planned started_at finished_at"):
    """A stage of the search."""

    finished: int


class DriverOut(Out, of=DriverRecord, shows="id name workers state"):
    """A process that drives the study; ``silent_s`` are the seconds since its last heartbeat."""

    silent_s: float


class BestOut(Out):
    """The winner so far; ``value`` is of the study's first measure.

    ``breaks`` names the limits that even the winner does not keep, as ``--max-drop``;
    ``intervals`` are 95 % intervals of its scores. ``luck`` says why a trial with more right
    answers is not the best, ``beside`` the worst output and what ``compile`` reaches alone.
    """

    number: int
    value: float | None
    score: Score
    breaks: list[str]
    intervals: dict[str, tuple[float, float]]
    luck: str | None
    beside: list[str]


class VerdictOut(Out):
    """Verdict: whether the search reached the limits it was given."""

    state: Literal["met", "missed", "none", "open"]
    words: str


class LimitOut(Out):
    """Limit that a winner must keep; ``kept`` by the best trial so far."""

    name: str
    sign: str
    limit: float
    words: str
    kept: bool | None


class FrontOut(Out):
    """A trial that no other beats in every objective."""

    number: int
    score: Score


class StudyOut(Out, of=Study, shows="name state target_trials created_at updated_at"):
    """Standing of a study.

    ``listening`` counts the drivers that will read a command; ``silent``: a driver is not ended and
    sends no heartbeats. ``phase`` is what happens now; ``resume`` is the command that continues a
    search that ended early.
    """

    key: str
    model: str
    stopped: Masked | None
    device: str
    paused: bool
    finished: int
    counts: dict[str, int]
    phase: str
    verdict: VerdictOut
    measure: MeasureOut
    objectives: list[MeasureOut]
    limits: list[LimitOut]
    best: BestOut | None
    baseline: Score | None
    baseline_intervals: dict[str, tuple[float, float]]
    front: list[FrontOut]
    cost: str | None
    accuracy: str
    floor: float | None
    resume: str | None
    rate_per_min: float
    listening: int
    silent: bool
    version: int
    spark: list[float]
    note: str
    note_by: str
    tags: list[str]
    proof: str | None
    module_bytes: int | None


class StudyDetail(StudyOut, of=Study, shows="seed code_version emitted"):
    """A study with what does not fit into a list."""

    model_sha256: str | None
    evaluator: str | None
    sampler: str | None
    measures: list[MeasureOut]
    parameters: list[str]
    constant: list[str]
    stages: list[StageOut]
    drivers: list[DriverOut]
    layer_kinds: list[str]
    can_resume: bool
    can_change: bool


class StudiesPage(Out):
    """Studies, newest change first."""

    studies: list[StudyOut]
    total: int
    devices: list[str]
    allow_launch: bool
    has_queue: bool


class TrialRow(
    Out,
    of=TrialPoint,
    shows="number state stage params score objective_values samples seconds cpu_s attempts "
    "lost_workers from_store driver_id started_at finished_at",
):
    """A trial in a table."""

    error: Masked | None
    front: bool = False
    note: str = ""
    note_by: str = ""
    tags: list[str] = []


class TrialsPage(Out):
    """One page of trials: ``matched`` pass the filter, of ``total``."""

    rows: list[TrialRow]
    matched: int
    total: int
    offset: int


class ShardOut(Out, of=Shard, shows="shard shards samples cpu_s"):
    """Result of one part of a trial's evaluation."""

    score: Score


class LogOut(Out, of=LogExcerpt, shows="source at"):
    """The end of a log."""

    excerpt: Masked


class TrialDetail(TrialRow, of=Trial, shows="batch qconfig config_hash work_hash created_at"):
    """All that is known of a trial.

    ``can_measure`` and ``has_ranges`` say that the files for its layers and ranges are here.
    """

    outputs_sha256: str | None
    peak_rss_bytes: int | None
    error_where: Masked | None
    error_fix: Masked | None
    intervals: dict[str, tuple[float, float]]
    shards: list[ShardOut]
    logs: list[LogOut]
    is_best: bool
    can_measure: bool
    has_ranges: bool


class FailureOut(Out):
    """Trials that ended for the same reason."""

    state: str
    what: Masked
    count: int
    trials: list[int]


class LayerOut(Out, of=LayerFigures, shows="kind layer position figures"):
    """Figures about one layer."""


class EventOut(Out, of=Event, shows="id kind trial at"):
    """A line of the study's history."""

    data: Annotated[dict[str, Any] | None, AfterValidator(masked_values)]


class ImportancesOut(Out):
    """Effect of each parameter on a measure; ``left_out`` are those some trials lack."""

    measure: str
    importances: dict[str, float]
    left_out: list[str]


class NoteIn(In):
    """A note on a trial, or on the study where ``trial`` is null."""

    trial: Annotated[int, Field(ge=0, le=2**31)] | None = None
    note: Annotated[str, Field(max_length=4000, pattern=f"^[^{HIDDEN}]*$")] = ""
    tags: Annotated[list[Annotated[str, Field(pattern=_TAG)]], Field(max_length=20)] = []


class DeleteIn(In):
    """The name of the study to delete, as confirmation."""

    name: str


class CommandIn(In):
    """A command for the drivers of a study."""

    kind: Literal["pause", "resume", "stop"]


class TryIn(In):
    """A configuration to be evaluated next: fields that differ from a trial, or from where the
    search starts."""

    trial: Annotated[int, Field(ge=0, le=2**31)] | None = None
    fields: dict[str, Any]


class CommandOut(Out):
    """The number of drivers that will read the command; 0: no driver runs the study now."""

    kind: str
    listening: int


class SessionIn(In):
    """The token, once, for a cookie."""

    token: Annotated[str, Field(max_length=1024)]
