"""Engines: SQLite in WAL mode whose writers begin IMMEDIATE, or PostgreSQL through psycopg 3.

SQLite's ordinary BEGIN takes a read snapshot and cannot upgrade it once another process has
written: "database is locked", whatever the busy timeout. BEGIN IMMEDIATE waits its turn instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from qsearch.errors import EmptyStoreError, StoreError
from qsearch.masking import masked
from qsearch.process import file_lock, interrupts_kept
from qsearch.store.tables import METADATA, VERSION_TABLE

BUSY_TIMEOUT_MS = 5_000
"""Milliseconds that SQLite waits for a lock in silence; ``RetryPolicy`` waits on, and says so."""
CONNECT_TIMEOUT_S = 10

SCHEMA: Final = "0005"
"""Schema that this version makes and reads; a change of the tables gives it another number."""

# Any number that no other program uses for its advisory locks.
_SCHEMA_LOCK: Final = 0x71735F6D6967
LONGEST_URL: Final = 2000
_LONGEST_NAME: Final = 250
"""Bytes of a file's name; file systems take 255, and ``.lock`` is put behind it."""

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

log = logging.getLogger("qsearch.store")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits for a database server that restarts, or for a lock of SQLite.

    Attributes:
        seconds: then the error is raised.
        sleep, monotonic: for tests.
    """

    seconds: float = 120.0
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic

    def run(self, url: URL, attempt: Callable[[], T], *, comes_back: bool = False) -> T:
        """The result of ``attempt``, which is called again until the database can be used.

        Args:
            comes_back: a server that does not answer is waited for, and not only a lock: it
                answered before, so that its address is right.
        Raises:
            IntegrityError: a unique constraint.
            StoreError: the database cannot be used, or not in time.
        """
        begin = self.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                with interrupts_kept():
                    return attempt()
            except IntegrityError:
                raise
            except (SQLAlchemyError, OSError, ImportError) as error:
                reason = _reason_to_wait(error, comes_back)
                waited = self.monotonic() - begin
                if reason is None or waited > self.seconds:
                    raise unreachable(url, error, waited) from error
                if pause == _FIRST_PAUSE_S:
                    log.warning(
                        "%s %s; waiting, %.0f s at most", reason, shown_url(url), self.seconds
                    )
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _reason_to_wait(error: Exception, comes_back: bool) -> str | None:
    if _sqlite_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return "another process holds the lock of the storage"
    if isinstance(error, OperationalError) and "too many clients" in str(error):
        return "the server has no connection left for"
    gone = comes_back and isinstance(error, OperationalError | InterfaceError)
    if gone:
        return "no answer from the storage"
    return None


def _sqlite_code(error: BaseException) -> int | None:
    """SQLite's primary error code."""
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    if code is None:
        return None
    return int(code) & 0xFF


def open_engine(
    storage: str,
    *,
    create: bool = True,
    reader: bool = False,
    retry: RetryPolicy | None = None,
) -> Engine:
    """Connect, and make the tables in an empty database.

    Args:
        storage: ``sqlite:///path`` or ``postgresql://user:password@host/database``.
        create: False refuses a database that does not exist yet.
        reader: as of ``open_reader``.
        retry: with a lock that another process holds.
    Raises:
        StoreError: no such URL, driver or server; or a schema of another version.
    """
    url = parse_url(storage)
    path = Path(url.database or "")
    if not create and url.get_backend_name() == "sqlite" and not path.is_file():
        raise StoreError("there is no database", where=str(path), fix="run `qsearch launch` first")

    def attempt() -> Engine:
        engine = _create(url, reader=reader)
        if not _is_current(engine, url, create):
            with engine.connect() as connection:
                _make_schema(connection)
        return engine

    return (retry or RetryPolicy()).run(url, attempt)


def open_reader(storage: str, *, retry: RetryPolicy | None = None) -> Engine:
    """Connect to look only: the database refuses every write of this engine.

    Raises:
        EmptyStoreError: the database has no schema yet.
        StoreError: as ``open_engine``; and where there is no database.
    """
    return open_engine(storage, create=False, reader=True, retry=retry)


def require_folder(storage: str) -> None:
    """Check that a search could make the database, if it is a file.

    Raises:
        StoreError: the folder of the file is not there, or ``storage`` is no URL of ours.
    """
    url = parse_url(storage)
    folder = Path(url.database or "").absolute().parent
    if url.get_backend_name() == "sqlite" and not folder.is_dir():
        raise StoreError(
            "there is no folder for the database", where=str(folder), fix="correct --storage"
        )


def parse_url(storage: str) -> URL:
    """The URL with the driver we use; a bare ``postgresql://`` means psycopg 3.

    Raises:
        StoreError: no URL of a database that can be used.
    """
    fix = "sqlite:///path/to/study.db or postgresql://user:password@host/database"
    if len(storage) > LONGEST_URL:
        raise StoreError(
            f"a storage URL of {len(storage)} letters; {LONGEST_URL} are the most",
            where=f"storage, {masked(storage)[:16]}…",
            fix=fix,
        )
    try:
        if "\0" in storage:
            raise ValueError("it holds a null character")
        url = make_url(storage)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError) as error:
        raise StoreError(
            f"{masked(storage)!r} is not a storage URL", where="storage", fix=fix
        ) from error
    for part in Path(url.database or "").parts if backend == "sqlite" else ():
        if len(os.fsencode(part)) > _LONGEST_NAME:
            raise StoreError(
                f"a name of {len(os.fsencode(part))} bytes is too long for a file",
                where=f"storage, {part[:40]}…",
                fix=f"use names up to {_LONGEST_NAME - len('.lock')} bytes",
            )
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(
            "a storage in memory is lost with the process",
            where=str(url),
            fix="name a file: sqlite:///path/to/study.db",
        )
    if backend not in {"sqlite", "postgresql"}:
        raise StoreError(
            f"databases of kind {backend!r} are not supported",
            where=shown_url(url),
            fix=fix,
        )
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    return url


def shown_url(url: URL) -> str:
    """The URL with its password hidden."""
    return masked(url.render_as_string(hide_password=False))


def unreachable(url: URL, error: BaseException, waited_s: float = 0.0) -> StoreError:
    """A storage that cannot be used right now, told without the password."""
    reason = str(getattr(error, "orig", None) or error).strip().splitlines() or ["no answer"]
    if url.password:
        text = reason[0].replace(str(url.password), "***")
    else:
        text = reason[0]
    busy = (
        f"another process has locked the database for {waited_s:.0f} s",
        "end the program that holds the file open (fuser names it), then run the same command "
        "again: finished trials are kept",
    )
    known = {
        sqlite3.SQLITE_BUSY: busy,
        sqlite3.SQLITE_LOCKED: busy,
        sqlite3.SQLITE_NOTADB: (
            "the file is no SQLite database, or its first page is damaged",
            "name another file, or restore this one from a copy",
        ),
        sqlite3.SQLITE_CORRUPT: (
            f"the database is damaged: {text}",
            f"restore it from a copy, or save what can be read: sqlite3 {url.database} .recover | "
            "sqlite3 saved.db; to start over, delete the file",
        ),
    }
    if told := known.get(_sqlite_code(error) or 0):
        return StoreError(told[0], where=shown_url(url), fix=told[1])
    if isinstance(error, ImportError | NoSuchModuleError):
        fix = "install the driver: pip install 'qsearch[postgres]'"
    elif "no equivalent in encoding" in text:
        fix = "make the database with ENCODING 'UTF8', or use plain letters in names"
    elif "full" in text or "disk I/O" in text:
        fix = "free space, then run the same command again: finished trials are kept"
    elif url.get_backend_name() == "sqlite":
        fix = "check that the folder exists, is writable and on a local disk"
    else:
        fix = "check host, port, user, password and database name, and that the server runs"
    return StoreError(f"the storage cannot be reached: {text}", where=shown_url(url), fix=fix)


def _create(url: URL, *, reader: bool = False) -> Engine:
    if url.get_backend_name() == "sqlite":
        if reader:
            url = _readable(url)
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
        event.listen(engine, "connect", _on_sqlite_reader if reader else _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    # Text of an SQL_ASCII database, which a server without a locale makes, would come as bytes.
    arguments = {"connect_timeout": CONNECT_TIMEOUT_S, "client_encoding": "utf8"}
    if reader:
        arguments["options"] = "-c default_transaction_read_only=on"
    # No ping before each transaction: ``Database`` runs one again whose connection was gone.
    # A driver keeps one: its heartbeat opens another for a moment where both are at work. A hundred
    # drivers would take all connections of a server otherwise.
    return create_engine(url, connect_args=arguments, pool_size=5 if reader else 1)


def _readable(url: URL) -> URL:
    """The URL of a file beside which SQLite makes none, where the folder takes none.

    Nobody can write to such a database; what is not in it yet, in a file beside it, would be lost.
    """
    file = Path(url.database or "").absolute()
    log = file.with_name(f"{file.name}-wal")
    if os.access(file.parent, os.W_OK) or (log.exists() and log.stat().st_size):
        return url
    return url.set(database=f"file:{quote(str(file))}", query={"immutable": "1", "uri": "true"})


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _on_sqlite_reader(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _on_sqlite_begin(connection: Connection) -> None:
    # One statement that reads is a transaction of its own.
    if not connection.get_execution_options().get("reader", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_current(engine: Engine, url: URL, create: bool) -> bool:
    """True where the schema is there; False means that it may be made.

    Raises:
        StoreError: it is another version's, or missing and not to be made.
    """
    with engine.connect().execution_options(reader=True) as connection:
        found = _found_revision(connection)
    if found is None and not create:
        raise EmptyStoreError(
            "the database holds no study",
            where=shown_url(url),
            fix="give the storage of a `qsearch launch`",
        )
    if found is not None and found != SCHEMA:
        raise StoreError(
            f"the database has schema {found!r}, this version of qsearch reads {SCHEMA!r}",
            where=shown_url(url),
            fix="use the version of qsearch that wrote it, or another storage",
        )
    return found is not None


def _found_revision(connection: Connection) -> str | None:
    """The schema that a database has; None where it has none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
    if row:
        return str(row[0])
    return None


def _make_schema(connection: Connection) -> None:
    """The tables in an empty database, unless another process was quicker; commits."""
    # Processes that change the schema take turns: SQLite's BEGIN IMMEDIATE does so by itself.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
    if _found_revision(connection) is None:
        METADATA.create_all(connection)
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{SCHEMA}')")
    connection.commit()


@contextlib.contextmanager
def exclusive(engine: Engine) -> Iterator[Callable[[], None]]:
    """Hold the right to drive a study of this SQLite database; it ends with the process, however.

    On PostgreSQL several drivers share a database and a study: there, leases keep them apart.

    Yields:
        a check that raises StoreError once the file of the database was deleted or replaced:
        SQLite itself goes on writing to a file that has no name any more.
    Raises:
        StoreError: another living process drives a study of this database.
    """
    if engine.url.get_backend_name() != "sqlite":
        yield lambda: None
        return
    path = Path(str(engine.url.database))
    busy = StoreError(
        "another process is searching with this SQLite database",
        where=shown_url(engine.url),
        fix="wait for it, stop it, or use another database; drivers can share PostgreSQL",
    )
    with file_lock(Path(f"{path}.lock"), busy):
        opened = path.stat()

        def check() -> None:
            with contextlib.suppress(OSError):
                if os.path.samestat(opened, path.stat()):
                    return
            raise deleted(engine.url)

        yield check


def deleted(url: URL) -> StoreError:
    """The file of a SQLite database is gone while it is in use."""
    return StoreError(
        "the database was deleted or replaced while it was in use",
        where=shown_url(url),
        fix="put the file back from a copy and run the same command again; without it the "
        "command starts over",
    )
