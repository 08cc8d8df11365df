"""Every query of the service, a method with a name. Only the driver writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Engine, Executable, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from compiler.errors import legal_names
from qsearch.errors import StoreError
from qsearch.store.engine import masked, unreachable
from qsearch.store.models import ArtifactRow, EventRow, StudyRow, TrialRow
from qsearch.store.records import (
    REPEATABLE,
    UNFINISHED,
    Counts,
    Event,
    NewStudy,
    NewTrial,
    Outcome,
    StoredArtifact,
    Study,
    StudyState,
    Trial,
)
from qsearch.store.row_records import study_of, trial_of


class Repository:
    """The store of studies behind one engine.

    Args:
        engine: from ``open_engine``.
        clock: gives UTC seconds since 1970; an argument so that tests bring their own.

    Every method runs in one transaction and raises StoreError when the database does not answer.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self.engine = engine
        self._clock = clock

    def close(self) -> None:
        """Release the connections."""
        self.engine.dispose()

    # studies -----------------------------------------------------------------------------------

    def create_study(self, study: NewStudy) -> Study:
        """Store a new study in state "running".

        Raises:
            StoreError: the name is taken.
        """
        now = self._clock()
        values = {
            "name": study.name,
            "model_name": study.model_name,
            "model_sha256": study.model_sha256,
            "spec": dict(study.spec),
            "spec_hash": study.spec_hash,
            "seed": study.seed,
            "state": "running",
            "target_trials": study.target_trials,
            "code_version": study.code_version,
            "created_at": now,
            "updated_at": now,
        }
        try:
            self._write(insert(StudyRow).values(**values))
        except IntegrityError as error:
            raise StoreError(
                f"a study named {study.name!r} exists already",
                where="storage",
                fix="use another --study, or --fresh to start over",
            ) from error
        return self.study(study.name)

    def find_study(self, name: str) -> Study | None:
        """The study of this name, if there is one."""
        rows = self._read(select(*StudyRow.__table__.columns).where(StudyRow.name == name))
        return study_of(rows[0]) if rows else None

    def study(self, name: str) -> Study:
        """The study of this name.

        Raises:
            StoreError: there is none; the message lists what there is.
        """
        found = self.find_study(name)
        if found is None:
            raise StoreError(
                f"there is no study {name!r}",
                where=masked(self.engine.url),
                fix=legal_names(name, [study.name for study in self.studies()]),
            )
        return found

    def studies(self) -> list[Study]:
        """All studies, oldest first."""
        rows = self._read(select(*StudyRow.__table__.columns).order_by(StudyRow.id))
        return [study_of(row) for row in rows]

    def delete_study(self, study_id: int) -> None:
        """Forget a study with its trials, artefact rows and events."""
        self._write(
            delete(EventRow).where(EventRow.study_id == study_id),
            delete(ArtifactRow).where(ArtifactRow.study_id == study_id),
            delete(TrialRow).where(TrialRow.study_id == study_id),
            delete(StudyRow).where(StudyRow.id == study_id),
        )

    def save_baseline(self, study_id: int, baseline: Mapping[str, Any]) -> None:
        """Keep what the float model scores."""
        self._update_study(study_id, baseline=dict(baseline))

    def save_emitted(self, study_id: int, emitted: Mapping[str, Any] | None) -> None:
        """Keep what the written module scores."""
        self._update_study(study_id, emitted=dict(emitted) if emitted is not None else None)

    def set_target(self, study_id: int, trials: int) -> None:
        """Change how many trials the study shall have in total."""
        self._update_study(study_id, target_trials=trials)

    def set_study_state(self, study_id: int, state: StudyState, stopped: str | None = None) -> None:
        """Say how the study stands; ``stopped`` tells why it ended before its target."""
        self._update_study(study_id, state=state, stopped=stopped)

    def set_code_version(self, study_id: int, version: str) -> None:
        """Note that newer code goes on with the study."""
        self._update_study(study_id, code_version=version)

    # trials ------------------------------------------------------------------------------------

    def add_trials(self, study_id: int, trials: Sequence[NewTrial]) -> None:
        """Queue a batch in one transaction: all of it is stored or nothing."""
        now = self._clock()
        rows = [
            {
                "study_id": study_id,
                "number": trial.number,
                "batch": trial.batch,
                "state": "waiting",
                "params": dict(trial.params),
                "qconfig": dict(trial.qconfig),
                "config_hash": trial.config_hash,
                "work_hash": trial.work_hash,
                "collapsed": False,
                "attempts": 0,
                "from_store": False,
                "created_at": now,
            }
            for trial in trials
        ]
        if rows:
            self._write(insert(TrialRow), rows=rows)

    def trials_of(
        self, study_id: int, *, states: Iterable[str] | None = None, batch: int | None = None
    ) -> list[Trial]:
        """Trials by number: all, or those in the given states or of one batch."""
        query = select(*TrialRow.__table__.columns).where(TrialRow.study_id == study_id)
        if states is not None:
            query = query.where(TrialRow.state.in_(list(states)))
        if batch is not None:
            query = query.where(TrialRow.batch == batch)
        return [trial_of(row) for row in self._read(query.order_by(TrialRow.number))]

    def count_trials(self, study_id: int) -> Counts:
        """How many trials stand where."""
        rows = self._read(
            select(TrialRow.state, TrialRow.from_store, func.count())
            .where(TrialRow.study_id == study_id)
            .group_by(TrialRow.state, TrialRow.from_store)
        )
        counts: dict[str, int] = {}
        for state, from_store, count in rows:
            counts[state] = counts.get(state, 0) + count
            if from_store and state == "complete":
                counts["from_store"] = counts.get("from_store", 0) + count
        return Counts(**counts)

    def start_trial(self, trial_id: int) -> None:
        """Note that a worker has it, and that this is one attempt more."""
        self._write(
            update(TrialRow)
            .where(TrialRow.id == trial_id, TrialRow.state.in_(UNFINISHED))
            .values(state="running", attempts=TrialRow.attempts + 1, started_at=self._clock())
        )

    def finish_trial(self, trial_id: int, outcome: Outcome) -> bool:
        """Store how a trial ended; False when it had ended before (nothing is changed then)."""
        failure = outcome.failure
        result = self._write(
            update(TrialRow)
            .where(TrialRow.id == trial_id, TrialRow.state.in_(UNFINISHED))
            .values(
                state=outcome.state,
                score=dict(outcome.score) if outcome.score is not None else None,
                samples=outcome.samples,
                collapsed=outcome.collapsed,
                outputs_sha256=outcome.outputs_sha256,
                error_what=failure.what if failure else None,
                error_where=failure.where if failure else None,
                error_fix=failure.fix if failure else None,
                attempts=TrialRow.attempts + max(0, outcome.attempts - 1),
                from_store=outcome.from_store,
                compile_cpu_s=outcome.compile_cpu_s,
                run_cpu_s=outcome.run_cpu_s,
                peak_rss_bytes=outcome.peak_rss_bytes,
                seconds=outcome.seconds,
                finished_at=self._clock(),
            )
        )
        return result == 1

    def requeue_running(self, study_id: int) -> int:
        """Put interrupted trials back into the queue, with the same parameters; how many."""
        return self._write(
            update(TrialRow)
            .where(TrialRow.study_id == study_id, TrialRow.state == "running")
            .values(state="waiting", started_at=None)
        )

    def answered_work(self, work_hashes: Sequence[str]) -> dict[str, Trial]:
        """Trials of any study that did exactly this work, by work hash.

        Those that failed do not count: a second try may end otherwise.
        """
        if not work_hashes:
            return {}
        rows = self._read(
            select(*TrialRow.__table__.columns)
            .where(TrialRow.work_hash.in_(list(work_hashes)), TrialRow.state.in_(REPEATABLE))
            .order_by(TrialRow.id)
        )
        answers: dict[str, Trial] = {}
        for row in rows:
            answers.setdefault(row.work_hash, trial_of(row))
        return answers

    # artefacts and events ----------------------------------------------------------------------

    def save_artifact(self, study_id: int, artifact: StoredArtifact) -> None:
        """Remember a file under its kind and key, in place of an earlier one."""
        where = (
            ArtifactRow.study_id == study_id,
            ArtifactRow.kind == artifact.kind,
            ArtifactRow.key == artifact.key,
        )
        self._write(
            delete(ArtifactRow).where(*where),
            insert(ArtifactRow).values(
                study_id=study_id,
                kind=artifact.kind,
                key=artifact.key,
                sha256=artifact.sha256,
                bytes=artifact.bytes,
                cpu_s=artifact.cpu_s,
                created_at=self._clock(),
            ),
        )

    def artifacts_of(self, study_id: int, kind: str | None = None) -> list[StoredArtifact]:
        """Files of a study, of one kind or all."""
        query = select(*ArtifactRow.__table__.columns).where(ArtifactRow.study_id == study_id)
        if kind is not None:
            query = query.where(ArtifactRow.kind == kind)
        return [
            StoredArtifact(row.kind, row.key, row.sha256, row.bytes, row.cpu_s)
            for row in self._read(query.order_by(ArtifactRow.id))
        ]

    def add_event(
        self,
        study_id: int,
        kind: str,
        *,
        trial: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Append to the study's history."""
        self._write(
            insert(EventRow).values(
                study_id=study_id,
                kind=kind,
                trial=trial,
                data=dict(data) if data is not None else None,
                at=self._clock(),
            )
        )

    def events_of(self, study_id: int, after: int = 0) -> list[Event]:
        """Events with an id above ``after``, oldest first."""
        rows = self._read(
            select(*EventRow.__table__.columns)
            .where(EventRow.study_id == study_id, EventRow.id > after)
            .order_by(EventRow.id)
        )
        return [Event(row.id, row.kind, row.trial, row.data, row.at) for row in rows]

    # plumbing ----------------------------------------------------------------------------------

    def _update_study(self, study_id: int, **values: Any) -> None:
        self._write(
            update(StudyRow)
            .where(StudyRow.id == study_id)
            .values(**values, updated_at=self._clock())
        )

    def _write(self, *statements: Executable, rows: Sequence[Mapping[str, Any]] = ()) -> int:
        """One transaction; rows touched by the last statement."""
        touched = 0
        try:
            with self.engine.begin() as connection:
                for statement in statements:
                    result: CursorResult[Any] = (
                        connection.execute(statement, list(rows))
                        if rows
                        else connection.execute(statement)
                    )
                    touched = result.rowcount
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise unreachable(self.engine.url, error) from error
        return touched

    def _read(self, statement: Any) -> Sequence[Any]:
        try:
            with self.engine.connect().execution_options(reader=True) as connection:
                return connection.execute(statement).all()
        except SQLAlchemyError as error:
            raise unreachable(self.engine.url, error) from error
