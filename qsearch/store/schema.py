"""The schema of a database: which version it has, made new, or brought up to date by alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect

from qsearch.store.models import VERSION_TABLE, Table

REVISIONS: Final = ("0001", "0002", "0003")
"""Schemas that this version knows, oldest first; a file of ``migrations/versions`` makes each."""
STUDIES: Final = REVISIONS[1:]
"""Schemas whose studies are read and written as they are; the newest adds a server's queue."""

# Any number that no other program uses for its advisory locks.
_MIGRATION_LOCK: Final = 0x71735F6D6967


def found_revision(connection: Connection) -> str | None:
    """The schema that a database has; None where it has none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
    return str(row[0]) if row else None


def make_schema(connection: Connection) -> None:
    """The newest schema in an empty database, unless another process was quicker; commits.

    The tables are made as the models describe them. Alembic, which takes long to import, is needed
    only to bring an older schema up to date.
    """
    _take_turns(connection)
    if found_revision(connection) is None:
        Table.metadata.create_all(connection)
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISIONS[-1]}')")
    connection.commit()


def upgrade_schema(connection: Connection) -> None:
    """Bring an older schema up to the newest with alembic, and commit.

    Alembic needs no ini file: the scripts lie in the package, the version in our own table.
    """
    from alembic import command
    from alembic.config import Config

    _take_turns(connection)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()


def _take_turns(connection: Connection) -> None:
    """Wait for processes that change the schema: SQLite's BEGIN IMMEDIATE does by itself."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
