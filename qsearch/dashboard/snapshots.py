"""Studies in memory, updated with the rows that changed since they were read.

A finished trial never changes but for one that failed, which the same command tries again: a
refresh reads only those that may change, and new ones.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from qsearch.dashboard.sources import NotFoundError, Source, Sources, study_key
from qsearch.report.measures import Measures, front_numbers
from qsearch.report.trial_table import TrialTable
from qsearch.run.run_folder import RunFolder
from qsearch.store.records import Study
from qsearch.store.repository import Repository
from qsearch.store.view_queries import Note, TrialPoint
from workers.metrics.size import DEFAULT_FORM

T = TypeVar("T")
Importances = tuple[dict[str, float], list[str]]
"""Importance by parameter, and the names of those left out."""
FRESH_S: Final = 0.4
"""Requests of one page arrive together and are answered from one reading."""
KEPT: Final = 32
"""Studies in memory."""
MOST_DERIVED: Final = 200
"""Values of one version; filters that people try are among them."""
RATE_WINDOW_S: Final = 300.0
MANY: Final = 1000
"""Points from which on Python's cyclic garbage collector leaves them out."""
MOST_OPEN: Final = 200
"""Unfinished trials that are asked for by number; of more, all from the first one on are read."""


@dataclass(slots=True)
class Snapshot:
    """One study at one moment.

    Attributes:
        version: grows whenever anything that is shown changed, also over restarts of the server:
            milliseconds since the epoch. Pages keep what they drew by it.
        open_ones: places in ``points`` of the trials that may change, by number.
        derived: what was computed from this version, by name.
        notes: the newest note of every trial that has one; of the study under None.
        importances: by measure, with the number of trials they were computed from.
        settled: points that the garbage collector leaves out.
    """

    key: str
    source: Source
    repository: Repository
    study: Study
    folder: RunFolder | None
    points: list[TrialPoint] = field(default_factory=list)
    open_ones: dict[int, int] = field(default_factory=dict)
    version: int = 0
    read_at: float = float("-inf")
    derived: dict[Any, Any] = field(default_factory=dict)
    importances: dict[str, tuple[int, Importances]] = field(default_factory=dict)
    notes: dict[int | None, Note] = field(default_factory=dict)
    settled: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def measures(self) -> Measures:
        """Measures of its trials, and the better direction of each."""
        return self.derive("measures", lambda: Measures.of(self.study, self.points))

    @property
    def module(self) -> Path | None:
        """The module that was written, where this machine has it."""
        if self.folder and self.folder.module.is_file():
            return self.folder.module
        return None

    @property
    def counts(self) -> Mapping[str, int]:
        """Trials by state."""
        return self.derive("counts", lambda: Counter(point.state for point in self.points))

    @property
    def best(self) -> TrialPoint | None:
        """The winner so far."""
        return self.derive("best", lambda: self.measures.best(self.points))

    @property
    def front(self) -> list[int]:
        """Numbers of the trials on the front of a search with several objectives, best first."""
        return self.derive("front", lambda: front_numbers(self.measures, self.points))

    @property
    def table(self) -> TrialTable:
        """Its trials as a table."""
        return self.derive(
            "table", lambda: TrialTable(self.points, self.measures, self.front, self.notes)
        )

    @property
    def rate_per_min(self) -> float:
        """Trials that ended in the last minutes of the newest driver, by minutes."""
        spans = sorted(
            (p.finished_at, p.started_at or p.finished_at, p.driver_id or 0)
            for p in self.points
            if p.finished_at and not p.from_store
        )
        if not spans:
            return 0.0
        newest, _, driver = spans[-1]
        began = min(start for _, start, its in spans if its == driver)
        since = max(began, newest - RATE_WINDOW_S)
        return 60.0 * sum(end > since for end, _, _ in spans) / ((newest - since) or 1.0)

    def derive(self, name: Any, compute: Callable[[], T]) -> T:
        """A value of this version, computed once."""
        if name not in self.derived:
            if len(self.derived) >= MOST_DERIVED:
                self.derived.clear()
            self.derived[name] = compute()
        return cast(T, self.derived[name])


def device_of(study: Study) -> str:
    """The core or the form that a search was for."""
    return str(study.spec.get("for", DEFAULT_FORM))


@dataclass(frozen=True, slots=True)
class StudyFilter:
    """Choice and order of the studies of a list; fields as in ``list_studies``."""

    find: str = ""
    state: str = ""
    sort: str = "-changed"
    device: str = ""

    def passes(self, study: Study) -> bool:
        """Return whether the list shows it."""
        text = f"{study.name} {study.model_name}".lower()
        kept = self.state in ("", study.state) and self.device in ("", device_of(study))
        return kept and all(w in text for w in self.find.lower().split())

    def place(self, study: Study) -> Any:
        """Return the sort key of a study."""
        column = self.sort.removeprefix("-")
        names = {"changed": "updated_at", "created": "created_at", "model": "model_name"}
        return getattr(study, names.get(column, column))


class Snapshots:
    """Snapshots of the studies that are looked at; safe to use from several threads."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._kept: OrderedDict[str, Snapshot] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: str) -> Snapshot:
        """The study of this key, not older than a moment.

        Raises:
            NotFoundError: no such study.
            StoreError: its database does not answer.
        """
        source, repository, study_id = self.sources.find(key)
        with self._lock:
            known = self._kept.get(key)
        if known is not None and time.monotonic() - known.read_at < FRESH_S:
            return known
        found = next((s for s in repository.studies() if s.id == study_id), None)
        if found is None:
            with self._lock:
                self._kept.pop(key, None)
            raise NotFoundError("there is no such study", where=key, fix="see /api/v1/studies")
        return self.refreshed(key, source, repository, found)

    def page(
        self, offset: int, limit: int, chosen: StudyFilter
    ) -> tuple[list[Snapshot], int, list[str]]:
        """Snapshots of so many studies, in order; how many studies pass the filter, and the
        devices of all studies.

        Raises:
            StoreError: the only database does not answer.
        """
        every = list(self.sources.studies())
        studies = [each for each in every if chosen.passes(each[2])]
        studies.sort(key=lambda each: chosen.place(each[2]), reverse=chosen.sort.startswith("-"))
        shown = [
            self.refreshed(study_key(source, study), source, repository, study)
            for source, repository, study in studies[offset : offset + limit]
        ]
        return shown, len(studies), sorted({device_of(study) for *_, study in every})

    def refreshed(self, key: str, source: Source, repository: Repository, study: Study) -> Snapshot:
        """The snapshot of a study whose row was just read."""
        with self._lock:
            known = self._kept.get(key)
            if known is None or known.study.created_at != study.created_at:
                folder = self.sources.run_folder(source, study)
                known = Snapshot(key, source, repository, study, folder)
                self._kept[key] = known
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        with known.lock:
            if time.monotonic() - known.read_at >= FRESH_S:
                self._refresh(known, study)
        return known

    def _refresh(self, known: Snapshot, study: Study) -> None:
        points = known.points
        open_ones = known.open_ones
        if len(open_ones) <= MOST_OPEN:
            start = points[-1].number + 1 if points else 0
            kept = len(points)
        else:
            start, kept = next(iter(open_ones.items()))
        read = known.repository.points_of(study.id, start, [n for n in open_ones if n < start])
        newest = max((note.event for note in known.notes.values()), default=0)
        notes = known.repository.notes_of(study.id, newest)
        known_ones = [points[i] for i in open_ones.values() if i < kept]
        if (
            read != [*known_ones, *points[kept:]]
            or study != known.study
            or notes
            or not known.version
        ):
            renewed = points[:kept]
            for point in read:
                place = open_ones.get(point.number, kept)
                if place < kept:
                    renewed[place] = point
                else:
                    renewed.append(point)
            known.points = renewed
            known.open_ones = {p.number: i for i, p in enumerate(renewed) if p.may_change}
            known.study = study
            known.notes = known.notes | {note.trial: note for note in notes}
            known.derived = {}
            known.version = max(known.version + 1, int(1000 * time.time()))
            if len(renewed) >= max(MANY, 2 * known.settled):
                # Points form no cycles and reference counts free them. A collection that walks
                # 10,000 of them takes 0.1 s, in the middle of whatever request it falls into.
                gc.freeze()
                known.settled = len(renewed)
        known.read_at = time.monotonic()
