"""What the repository takes and gives: plain frozen records, no rows, no sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

TrialState = Literal["waiting", "running", "complete", "pruned", "failed", "infeasible"]
StudyState = Literal["running", "complete", "stopped", "failed"]

UNFINISHED: Final[tuple[TrialState, ...]] = ("waiting", "running")
FINISHED: Final[tuple[TrialState, ...]] = ("complete", "pruned", "failed", "infeasible")
REPEATABLE: Final[tuple[TrialState, ...]] = ("complete", "pruned", "infeasible")
"""How the same work would end again."""


@dataclass(frozen=True, slots=True)
class NewStudy:
    """A study to be created; fields as in ``StudyRow``."""

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
        work_hash: sha256 of all that decides the score: model, data, code, judge, configuration.
    """

    number: int
    batch: int
    params: Mapping[str, Any]
    qconfig: Mapping[str, Any]
    config_hash: str
    work_hash: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in columns: what happened, where, how to fix it."""

    what: str
    where: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended.

    Attributes:
        score: metric name → value (fractions 0..1, dB); empty where there is none.
        samples: how many were judged.
        seconds: wall time between submission and result.
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


@dataclass(frozen=True, slots=True)
class Trial(NewTrial):
    """A trial as it is stored."""

    id: int
    study_id: int
    outcome: Outcome
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def state(self) -> TrialState:
        """Where the trial stands."""
        return self.outcome.state

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be done."""
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
        """What counts towards ``--trials``."""
        return self.complete + self.pruned + self.failed + self.infeasible

    def report(self) -> dict[str, int]:
        """The counts as ``--json`` prints them."""
        names = (*FINISHED, "from_store")
        return {name: int(getattr(self, name)) for name in names}


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """Which file a study keeps under a kind and a key, and what it cost to make."""

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
