"""Questions of those who watch: what a trial came to, without its whole configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import func, select

from qsearch.store.database import Database
from qsearch.store.records import (
    FINISHED,
    Outcome,
    Trial,
    TrialState,
    names_of,
    record_of,
)
from qsearch.store.tables import ARTIFACT, DRIVER, EVENT, STUDY, TRIAL

NOTE: Final = "note"


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """A trial as plots and tables show it; fields as in ``Trial`` and ``Outcome``."""

    number: int
    state: TrialState
    stage: str
    params: Mapping[str, Any]
    score: Mapping[str, float | None] | None
    objective_values: tuple[float, ...] | None
    samples: int | None
    seconds: float | None
    cpu_s: float | None
    attempts: int
    lost_workers: int
    from_store: bool
    driver_id: int | None
    started_at: float | None
    finished_at: float | None
    error: str | None

    @classmethod
    def of(cls, trial: Trial) -> TrialPoint:
        """The same of a whole trial."""
        outcome = trial.outcome
        told = set(names_of(Outcome)).intersection(names_of(cls))
        return record_of(
            cls,
            trial,
            **{name: getattr(outcome, name) for name in told},
            cpu_s=_cpu_s(outcome),
            error=None if outcome.failure is None else outcome.failure.what,
        )

    @property
    def finished(self) -> bool:
        """Return whether nothing of it will change any more."""
        return self.state in FINISHED

    @property
    def may_change(self) -> bool:
        """Tell whether it is unfinished, or failed and may be tried again."""
        return not self.finished or self.state == "failed"


_MADE: Final = ("cpu_s", "error")
_COLUMNS: Final = (
    *(TRIAL.c[name] for name in names_of(TrialPoint) if name not in _MADE),
    TRIAL.c.compile_cpu_s,
    TRIAL.c.run_cpu_s,
    TRIAL.c.error_what,
)


@dataclass(frozen=True, slots=True)
class Note:
    """Note of people on a trial, or on the study where ``trial`` is None.

    A note is an event of kind ``NOTE``; the newest one counts.
    """

    event: int
    trial: int | None
    note: str
    tags: tuple[str, ...]
    author: str = ""


NO_NOTE: Final = Note(0, None, "", ())


@dataclass(frozen=True, slots=True)
class Totals:
    """All studies of a database in numbers; drivers and their workers are those that live."""

    studies: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_s: float = 0.0
    attempts: int = 0
    lost_workers: int = 0
    drivers: int = 0
    workers: int = 0
    artifact_bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, n) + getattr(other, n) for n in names_of(Totals)))


_STATE_TOTALS: Final = select(
    TRIAL.c.state,
    func.count(),
    *(
        func.coalesce(func.sum(column), 0)
        for column in (
            TRIAL.c.seconds,
            func.coalesce(TRIAL.c.compile_cpu_s, 0) + func.coalesce(TRIAL.c.run_cpu_s, 0),
            TRIAL.c.attempts,
            TRIAL.c.lost_workers,
        )
    ),
).group_by(TRIAL.c.state)


class ViewQueries(Database):
    """Queries of the dashboard, every second."""

    def totals(self, since: float) -> Totals:
        """All studies in numbers; drivers live whose last heartbeat came after ``since``."""
        studies = self.read(select(STUDY.c.state, func.count()).group_by(STUDY.c.state))
        rows = [(*row,) for row in self.read(_STATE_TOTALS)]
        live = (DRIVER.c.state == "running", DRIVER.c.beat_at >= since)
        workers = func.coalesce(func.sum(DRIVER.c.workers), 0)
        ((drivers, workers_now),) = self.read(select(func.count(), workers).where(*live))
        stored = select(func.coalesce(func.sum(ARTIFACT.c.bytes), 0))
        sums = [sum(column) for column in zip(*(row[2:] for row in rows))] or [0, 0, 0, 0]
        return Totals(
            Counter({row[0]: row[1] for row in studies}),
            Counter({row[0]: row[1] for row in rows}),
            float(sums[0]),
            float(sums[1]),
            *map(int, (*sums[2:], drivers, workers_now, self.read(stored)[0][0])),
        )

    def points_of(
        self, study_id: int, first: int = 0, also: Collection[int] = ()
    ) -> list[TrialPoint]:
        """Trials by number, from number ``first`` on, and those of the numbers ``also``."""
        wanted = TRIAL.c.number >= first
        if also:
            wanted |= TRIAL.c.number.in_(also)
        query = select(*_COLUMNS).where(TRIAL.c.study_id == study_id, wanted)
        return [_point_of(row) for row in self.read(query.order_by(TRIAL.c.number))]

    def notes_of(self, study_id: int, after: int = 0) -> list[Note]:
        """Notes and tags on a study and its trials, written after event ``after``, oldest first."""
        rows = self.read(
            select(EVENT.c.id, EVENT.c.trial, EVENT.c.data)
            .where(EVENT.c.study_id == study_id, EVENT.c.id > after, EVENT.c.kind == NOTE)
            .order_by(EVENT.c.id)
        )
        return [
            Note(
                r.id,
                r.trial,
                str(r.data.get("note", "")),
                tuple(r.data.get("tags", ())),
                str(r.data.get("author", "")),
            )
            for r in rows
        ]

    def newest_notes(self, study_id: int) -> dict[int | None, Note]:
        """The note that counts of each trial; that of the study under None."""
        return {note.trial: note for note in self.notes_of(study_id)}


def _point_of(row: Any) -> TrialPoint:
    return record_of(TrialPoint, row, cpu_s=_cpu_s(row), error=row.error_what)


def _cpu_s(outcome: Any) -> float | None:
    """CPU seconds of an outcome, or of a row that holds one."""
    known = [s for s in (outcome.compile_cpu_s, outcome.run_cpu_s) if s is not None]
    if known:
        return sum(known, 0.0)
    return None
