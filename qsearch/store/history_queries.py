"""Questions about what a search leaves beside its trials: files, events, stages, layers, logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select

from qsearch.store.database import Database
from qsearch.store.records import (
    Event,
    LayerFigures,
    LogExcerpt,
    Stage,
    StoredArtifact,
    columns_of,
)
from qsearch.store.tables import ARTIFACT, EVENT, LAYER, LOG, STAGE

BESIDE: Final = "beside"
"""Kind of the event that says what stands beside a winner: worst output, what compile reaches."""


class HistoryQueries(Database):
    """What a study keeps for people and for its next run."""

    def save_artifact(self, study_id: int, artifact: StoredArtifact) -> None:
        """Remember a file under its kind and key, in place of an earlier one."""
        values = columns_of(artifact) | {"created_at": self._clock()}
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
        row = insert(EVENT).values(**of_kind, data=told, at=self._clock())

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
        return list(rows[-1].data["told"]) if rows else []

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
