"""Questions about the processes that drive a study, and the wishes they are told."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, insert, select, update

from qsearch.store.database import Database
from qsearch.store.models import CommandRow, DriverRow
from qsearch.store.records import Command, CommandKind, DriverRecord

_COLUMNS = DriverRow.__table__.columns


class DriverQueries(Database):
    """Who drives, who still lives, what they are asked to do."""

    def join(self, study_id: int, name: str, code_version: str, workers: int) -> int:
        """Enter a driver; the id under which it leases trials."""
        now = self._clock()
        row = insert(DriverRow).values(
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

    def beat(self, driver_id: int) -> None:
        """Show that the driver lives."""
        self.execute(
            update(DriverRow)
            .where(DriverRow.id == driver_id)
            .values(beat=DriverRow.beat + 1, beat_at=self._clock())
        )

    def end_drivers(self, driver_ids: Collection[int]) -> None:
        """Note that drivers left, or are taken for dead."""
        if driver_ids:
            ended = update(DriverRow).where(DriverRow.id.in_(list(driver_ids)))
            self.execute(ended.values(state="ended"))

    def drivers_of(self, study_id: int | None, *, running: bool = False) -> list[DriverRecord]:
        """Drivers of a study, or of all (None), by arrival: all, or those that did not end."""
        query = select(*_COLUMNS)
        if study_id is not None:
            query = query.where(DriverRow.study_id == study_id)
        if running:
            query = query.where(DriverRow.state == "running")
        rows = self.read(query.order_by(DriverRow.id))
        return [
            DriverRecord(
                id=row.id,
                study_id=row.study_id,
                name=row.name,
                code_version=row.code_version,
                workers=row.workers,
                state=row.state,
                beat=row.beat,
                started_at=row.started_at,
                beat_at=row.beat_at,
            )
            for row in rows
        ]

    def add_command(self, study_id: int, kind: CommandKind) -> None:
        """Tell the drivers of a study something."""
        self.execute(insert(CommandRow).values(study_id=study_id, kind=kind, at=self._clock()))

    def last_command(self, study_id: int) -> int:
        """Id of the newest command; 0 when there is none."""
        rows = self.read(select(func.max(CommandRow.id)).where(CommandRow.study_id == study_id))
        return int(rows[0][0] or 0)

    def commands_of(self, study_id: int, after: int) -> list[Command]:
        """Commands with an id above ``after``, oldest first."""
        rows = self.read(
            select(*CommandRow.__table__.columns)
            .where(CommandRow.study_id == study_id, CommandRow.id > after)
            .order_by(CommandRow.id)
        )
        return [Command(row.id, row.kind, row.at) for row in rows]
