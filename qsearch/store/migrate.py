"""Alembic without an ini file: the scripts lie in the package, the version in our own table."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def head_revision() -> str:
    """Newest schema version this code knows."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def upgrade_to_head(connection: Connection) -> None:
    """Bring the database behind ``connection`` to the newest schema and commit."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
