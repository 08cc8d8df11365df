"""Alembic without an ini file: the scripts lie in the package, the version in our own table."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

# Any number that no other program uses for its advisory locks.
_MIGRATION_LOCK = 0x71735F6D6967


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def head_revision() -> str:
    """Newest schema version this code knows."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def known_revisions() -> tuple[str, ...]:
    """Every schema version this code can bring to the newest, oldest first."""
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    return tuple(reversed([script.revision for script in scripts]))


def upgrade_to_head(connection: Connection) -> None:
    """Bring the database behind ``connection`` to the newest schema and commit.

    Processes that arrive together take turns: SQLite by BEGIN IMMEDIATE, PostgreSQL by a lock that
    ends with the transaction. Those that come later find nothing to do.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
