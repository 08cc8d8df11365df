"""Engines: SQLite in WAL mode whose writers begin IMMEDIATE, or PostgreSQL through psycopg 3.

SQLite's ordinary BEGIN takes a read snapshot and cannot upgrade it once another process has
written: "database is locked", whatever the busy timeout. BEGIN IMMEDIATE waits its turn instead.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from qsearch.errors import StoreError
from qsearch.file_lock import file_lock
from qsearch.store.migrate import head_revision, upgrade_to_head
from qsearch.store.models import VERSION_TABLE

BUSY_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_S = 10


def open_engine(storage: str, *, create: bool = True) -> Engine:
    """Connect, and bring an empty database to the newest schema.

    Args:
        storage: ``sqlite:///path`` or ``postgresql://user:password@host/database``.
        create: False refuses a database that does not exist yet (for readers).
    Raises:
        StoreError: no such URL, driver or server; or a schema of another version.
    """
    url = parse_url(storage)
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not create and not path.is_file():
            raise StoreError(
                "there is no database", where=str(path), fix="run `qsearch launch` first"
            )
    try:
        engine = _create(url)
        if not _is_current(engine, url, create):
            with engine.connect() as connection:
                upgrade_to_head(connection)
    except (SQLAlchemyError, OSError, ImportError) as error:
        raise unreachable(url, error) from error
    return engine


def parse_url(storage: str) -> URL:
    """The URL with the driver we use; a bare ``postgresql://`` means psycopg 3."""
    try:
        url = make_url(storage)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError) as error:
        raise StoreError(
            f"{storage!r} is not a storage URL",
            where="storage",
            fix="sqlite:///path/to/study.db or postgresql://user:password@host/database",
        ) from error
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(
            "a storage in memory is lost with the process",
            where=str(url),
            fix="name a file: sqlite:///path/to/study.db",
        )
    if backend not in {"sqlite", "postgresql"}:
        raise StoreError(
            f"databases of kind {backend!r} are not supported",
            where=masked(url),
            fix="sqlite:///path/to/study.db or postgresql://user:password@host/database",
        )
    return url.set(drivername="postgresql+psycopg") if backend == "postgresql" else url


def masked(url: URL) -> str:
    """The URL with its password hidden."""
    return url.render_as_string(hide_password=True)


def unreachable(url: URL, error: BaseException) -> StoreError:
    """A storage that cannot be used right now, told without the password."""
    reason = str(getattr(error, "orig", None) or error).strip().splitlines() or ["no answer"]
    text = reason[0].replace(str(url.password), "***") if url.password else reason[0]
    if isinstance(error, ImportError | NoSuchModuleError):
        fix = "install the driver: pip install 'qsearch[postgres]'"
    elif url.get_backend_name() == "sqlite":
        fix = "check that the folder exists, is writable and on a local disk"
    else:
        fix = "check host, port, user, password and database name, and that the server runs"
    return StoreError(f"the storage cannot be reached: {text}", where=masked(url), fix=fix)


def _create(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    return create_engine(
        url, connect_args={"connect_timeout": CONNECT_TIMEOUT_S}, pool_pre_ping=True
    )


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_sqlite_begin(connection: Connection) -> None:
    reader = connection.get_execution_options().get("reader", False)
    connection.exec_driver_sql("BEGIN" if reader else "BEGIN IMMEDIATE")


def _is_current(engine: Engine, url: URL, create: bool) -> bool:
    """Whether the schema is there; False means that it may be made.

    Raises:
        StoreError: it is another version's, or missing and not to be made.
    """
    with engine.connect().execution_options(reader=True) as connection:
        found = None
        if inspect(connection).has_table(VERSION_TABLE):
            row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
            found = row[0] if row else None
    if found is None and not create:
        raise StoreError(
            "the database holds no study",
            where=masked(url),
            fix="give the storage of a `qsearch launch`",
        )
    head = head_revision()
    if found is not None and found != head:
        raise StoreError(
            f"the database has schema {found!r}, this version of qsearch needs {head!r}",
            where=masked(url),
            fix="use the version of qsearch that wrote it, or another storage",
        )
    return found is not None


@contextlib.contextmanager
def exclusive(engine: Engine, study: str) -> Iterator[None]:
    """Hold the right to drive ``study``; it ends with the process, however that ends.

    Raises:
        StoreError: another living process drives this study.
    """
    busy = StoreError(
        f"another process is searching study {study!r}",
        where=masked(engine.url),
        fix="wait for it, stop it, or use another --study",
    )
    if engine.url.get_backend_name() == "sqlite":
        with file_lock(Path(f"{engine.url.database}.lock"), busy):
            yield
        return
    key = int.from_bytes(hashlib.sha256(study.encode()).digest()[:8], "big", signed=True)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        held = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar()
        if not held:
            raise busy
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SELECT pg_advisory_unlock({key})")
