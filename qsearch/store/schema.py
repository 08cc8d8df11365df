"""The schema of a database: which version it has, or made new."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, inspect

from qsearch.store.models import VERSION_TABLE, Table

SCHEMA: Final = "0004"
"""What this version makes and reads; a change of ``models.py`` gives it another number."""

# Any number that no other program uses for its advisory locks.
_SCHEMA_LOCK: Final = 0x71735F6D6967


def found_revision(connection: Connection) -> str | None:
    """The schema that a database has; None where it has none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
    return str(row[0]) if row else None


def make_schema(connection: Connection) -> None:
    """The tables in an empty database, unless another process was quicker; commits."""
    # Processes that change the schema take turns: SQLite's BEGIN IMMEDIATE does so by itself.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
    if found_revision(connection) is None:
        Table.metadata.create_all(connection)
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{SCHEMA}')")
    connection.commit()
