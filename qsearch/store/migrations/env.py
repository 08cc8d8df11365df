"""What alembic runs: migrate over the connection that ``qsearch.store.schema`` hands in."""

from __future__ import annotations

from alembic import context

from qsearch.store.models import VERSION_TABLE, Table


def _run() -> None:
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        version_table=VERSION_TABLE,
        render_as_batch=connection.dialect.name == "sqlite",
        # Alembic takes SQLite for a database that commits at DDL: a reader, or a process killed
        # between two versions, would find the older schema. Our connections begin by themselves.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


_run()
