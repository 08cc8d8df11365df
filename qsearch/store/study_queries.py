"""Questions about studies, and about what a search leaves beside its trials: files, events, stages,
layers, logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from compiler.errors import legal_names
from qsearch.errors import ConflictError, StoreError
from qsearch.store.database import Database
from qsearch.store.engine import shown_url
from qsearch.store.records import (
    Command,
    CommandKind,
    DriverRecord,
    Event,
    LayerFigures,
    LogExcerpt,
    NewStudy,
    Stage,
    StoredArtifact,
    Study,
    StudyState,
    columns_of,
)
from qsearch.store.tables import ARTIFACT, COMMAND, DRIVER, EVENT, LAYER, LOG, STAGE, STUDY


class StudyQueries(Database):
    """Make, find, change and delete studies."""

    def create_study(self, study: NewStudy) -> Study:
        """Store a new study in state "running".

        Raises:
            ConflictError: the name is taken.
        """
        now = self.clock()
        row = insert(STUDY).values(
            **columns_of(study), state="running", created_at=now, updated_at=now
        )
        try:
            self.execute(row)
        except IntegrityError as error:
            raise ConflictError(
                f"a study named {study.name!r} exists already",
                where="storage",
                fix="use another --study, or --fresh to start over",
            ) from error
        return self.study(study.name)

    def find_study(self, name: str) -> Study | None:
        """The study of this name, if there is one."""
        return next(iter(self.records(Study, select(STUDY).where(STUDY.c.name == name))), None)

    def study(self, name: str) -> Study:
        """The study of this name.

        Raises:
            StoreError: there is none; the message lists what there is.
        """
        found = self.find_study(name)
        if found is None:
            raise StoreError(
                f"there is no study {name!r}",
                where=shown_url(self.engine.url),
                fix=legal_names(name, [study.name for study in self.studies()]),
            )
        return found

    def studies(self) -> list[Study]:
        """All studies, oldest first."""
        return self.records(Study, select(STUDY).order_by(STUDY.c.id))

    def delete_study(self, study_id: int) -> None:
        """Forget a study with all that belongs to it: rows of other tables go with its own."""
        self.execute(delete(STUDY).where(STUDY.c.id == study_id))

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
        """Store the state of the study; ``stopped`` is the reason if it ended before its target."""
        self._update_study(study_id, state=state, stopped=stopped)

    def set_code_version(self, study_id: int, version: str) -> None:
        """Note that newer code resumed the study."""
        self._update_study(study_id, code_version=version)

    def _update_study(self, study_id: int, **values: Any) -> None:
        changed = update(STUDY).where(STUDY.c.id == study_id)
        self.execute(changed.values(**values, updated_at=self.clock()))


# The drivers of a study, and the commands they are told -----------------------------------------


# Drivers ask these questions every second or two: built once.
_DRIVERS: Final = select(DRIVER).order_by(DRIVER.c.id)
_RUNNING: Final = _DRIVERS.where(DRIVER.c.state == "running")
_COMMANDS: Final = (
    select(COMMAND)
    .where(COMMAND.c.study_id == bindparam("of_study"), COMMAND.c.id > bindparam("after"))
    .order_by(COMMAND.c.id)
)
_BEAT: Final = (
    update(DRIVER)
    .where(DRIVER.c.id == bindparam("driver"))
    .values(beat=DRIVER.c.beat + 1, beat_at=bindparam("now"))
)


class DriverQueries(Database):
    """Drivers of studies, their heartbeats, and the commands for them."""

    def join(self, study_id: int, name: str, code_version: str, workers: int) -> int:
        """Enter a driver; the id under which it leases trials."""
        now = self.clock()
        row = insert(DRIVER).values(
            study_id=study_id,
            name=name,
            code_version=code_version,
            workers=workers,
            state="running",
            beat=0,
            started_at=now,
            beat_at=now,
        )
        return self.write(
            lambda connection: int(connection.execute(row).inserted_primary_key[0])  # type: ignore[index]
        )

    def record_heartbeat(self, driver_id: int) -> None:
        """Show that the driver lives."""
        beat = {"driver": driver_id, "now": self.clock()}
        self.write(lambda connection: connection.execute(_BEAT, beat))

    def end_drivers(self, driver_ids: Collection[int]) -> None:
        """Note that drivers left, or are taken for dead."""
        if driver_ids:
            ended = update(DRIVER).where(DRIVER.c.id.in_(list(driver_ids)))
            self.execute(ended.values(state="ended"))

    def drivers_of(self, study_id: int | None, *, running: bool = False) -> list[DriverRecord]:
        """Drivers of a study, or of all (None), by arrival: all, or those that did not end."""
        query = _RUNNING if running else _DRIVERS
        if study_id is not None:
            query = query.where(DRIVER.c.study_id == study_id)
        return self.records(DriverRecord, query)

    def add_command(self, study_id: int, kind: CommandKind) -> None:
        """Tell the drivers of a study something."""
        self.execute(insert(COMMAND).values(study_id=study_id, kind=kind, at=self.clock()))

    def commands_of(self, study_id: int, after: int) -> list[Command]:
        """Commands with an id above ``after``, oldest first."""
        return self.records(Command, _COMMANDS, {"of_study": study_id, "after": after})


BESIDE: Final = "beside"
"""Kind of the event that says what stands beside a winner: worst output, what compile reaches."""


class HistoryQueries(Database):
    """Records that a study keeps for people and for its next run."""

    def save_artifact(self, study_id: int, artifact: StoredArtifact) -> None:
        """Remember a file under its kind and key, in place of an earlier one."""
        values = columns_of(artifact) | {"created_at": self.clock()}
        self._replace(ARTIFACT, study_id, ("kind", "key"), [values])

    def artifacts_of(self, study_id: int, kind: str | None = None) -> list[StoredArtifact]:
        """Files of a study, of one kind or all."""
        query = select(ARTIFACT).where(ARTIFACT.c.study_id == study_id)
        if kind is not None:
            query = query.where(ARTIFACT.c.kind == kind)
        return self.records(StoredArtifact, query.order_by(ARTIFACT.c.id))

    def add_event(
        self,
        study_id: int,
        kind: str,
        *,
        trial: int | None = None,
        data: Mapping[str, Any] | None = None,
        newest: bool = False,
    ) -> None:
        """Append to the study's history.

        Args:
            newest: forget earlier events of the kind about the same trial.
        """
        told = dict(data) if data is not None else None
        of_kind = {"study_id": study_id, "kind": kind, "trial": trial}
        row = insert(EVENT).values(**of_kind, data=told, at=self.clock())

        def work(connection: Connection) -> None:
            (made,) = connection.execute(row).inserted_primary_key or (0,)
            if newest:
                same = [EVENT.c[name].is_not_distinct_from(of_kind[name]) for name in of_kind]
                connection.execute(delete(EVENT).where(*same, EVENT.c.id < made))

        self.write(work)

    def events_of(
        self, study_id: int, after: int = 0, limit: int | None = None, kind: str | None = None
    ) -> list[Event]:
        """Events with an id above ``after``, oldest first; of one kind or all.

        With several drivers on PostgreSQL an event may become visible after one with a greater id;
        a reader that follows the history reads the last few again.
        """
        query = select(EVENT).where(EVENT.c.study_id == study_id, EVENT.c.id > after)
        if kind is not None:
            query = query.where(EVENT.c.kind == kind)
        return self.records(Event, query.order_by(EVENT.c.id).limit(limit))

    def beside_of(self, study_id: int, trial: int) -> list[str]:
        """Sentences that the end of a search said beside the scores of its winner."""
        wanted = (EVENT.c.study_id == study_id, EVENT.c.kind == BESIDE, EVENT.c.trial == trial)
        rows = self.read(select(EVENT.c.data).where(*wanted).order_by(EVENT.c.id))
        if rows:
            return list(rows[-1].data["told"])
        return []

    def save_stage(self, study_id: int, stage: Stage) -> None:
        """Store a stage, in place of what was known of it."""
        self._replace(STAGE, study_id, ("name",), [columns_of(stage)])

    def stages_of(self, study_id: int) -> list[Stage]:
        """Stages in order."""
        query = select(STAGE).where(STAGE.c.study_id == study_id)
        return self.records(Stage, query.order_by(STAGE.c.position))

    def save_layers(self, study_id: int, layers: Sequence[LayerFigures]) -> None:
        """Store figures about layers, in place of those of the same kind and layer."""
        if layers:
            self._replace(LAYER, study_id, ("kind", "layer"), [columns_of(one) for one in layers])

    def layers_of(self, study_id: int, kind: str | None = None) -> list[LayerFigures]:
        """Figures about layers, in the order of the model."""
        query = select(LAYER).where(LAYER.c.study_id == study_id)
        if kind is not None:
            query = query.where(LAYER.c.kind == kind)
        order = (LAYER.c.kind, LAYER.c.position, LAYER.c.layer)
        return self.records(LayerFigures, query.order_by(*order))

    def logs_of(self, study_id: int, trial: int) -> list[LogExcerpt]:
        """Log excerpts of a trial, oldest first."""
        wanted = (LOG.c.study_id == study_id, LOG.c.trial == trial)
        return self.records(LogExcerpt, select(LOG).where(*wanted).order_by(LOG.c.id))

    def _replace(
        self, table: Any, study_id: int, key: tuple[str, ...], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows, or give those of the same keys new values; two drivers may do so at once."""
        if self.shared:
            from sqlalchemy.dialects.postgresql import insert as upsert
        else:
            from sqlalchemy.dialects.sqlite import insert as upsert  # type: ignore[assignment]
        new = upsert(table).values([{"study_id": study_id, **row} for row in rows])
        changed = {name: new.excluded[name] for name in rows[0] if name not in key}
        self.execute(new.on_conflict_do_update(index_elements=["study_id", *key], set_=changed))
