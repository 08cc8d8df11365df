"""Transactions while a server is away, and when Ctrl-C comes in the middle of one."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import JSON, Connection, text
from sqlalchemy.exc import OperationalError

from qsearch.errors import StoreError
from qsearch.store import engine
from qsearch.store.database import Database
from qsearch.store.engine import RetryPolicy, open_engine, parse_url


class Away(Database):
    """A shared database that does not answer for a while."""

    shared = True  # type: ignore[assignment]


def gone() -> OperationalError:
    return OperationalError("select 1", {}, Exception("server closed the connection"))


def waiting(storage_url: str, patience_s: float) -> tuple[Away, list[float]]:
    slept: list[float] = []
    return (
        Away(
            open_engine(storage_url),
            retry=RetryPolicy(patience_s, slept.append, lambda: sum(slept)),
        ),
        slept,
    )


def test_a_transaction_is_run_again_until_the_server_is_back(storage_url: str) -> None:
    database, slept = waiting(storage_url, patience_s=60)
    answers = iter([gone(), gone(), gone()])

    def work(_connection: object) -> str:
        for error in answers:
            raise error
        return "done"

    assert database.write(work) == "done"
    assert len(slept) == 3
    database.close()


@pytest.mark.postgres
def test_connections_that_died_in_the_pool_are_replaced(postgres_url: str) -> None:
    slept: list[float] = []
    database = Database(open_engine(postgres_url), retry=RetryPolicy(sleep=slept.append))
    alive = text("SELECT 1")

    def cut_off(connection: Connection) -> None:
        # Two of them: a second one in use while the first lies in the pool.
        with database.engine.connect() as other:
            other.execute(alive)
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
            {"name": database.engine.url.database},
        )

    with pytest.raises(StoreError):
        Database(database.engine, retry=RetryPolicy(-1.0)).write(cut_off)
    assert [row[0] for row in database.read(alive)] == [1]
    assert database.write(lambda connection: connection.execute(alive).scalar()) == 1
    assert len(slept) <= 1
    database.close()


def test_patience_ends_with_a_message_about_the_storage(storage_url: str) -> None:
    database, slept = waiting(storage_url, patience_s=10)

    def work(_connection: object) -> None:
        raise gone()

    with pytest.raises(StoreError, match="cannot be reached: server closed"):
        database.write(work)
    assert 10 <= sum(slept) < 20
    database.close()


def test_of_sqlite_only_a_lock_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    retry = RetryPolicy(sleep=lambda _s: pytest.fail("waited"))
    database = Database(open_engine(url), retry=retry)

    def work(_connection: object) -> None:
        raise gone()

    with pytest.raises(StoreError):
        database.write(work)
    database.close()


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A connection to ``study.db`` that holds its lock until it is rolled back."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 1)
    open_engine(f"sqlite:///{tmp_path / 'study.db'}").dispose()
    holder = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    yield holder
    holder.close()


def let_go_after(looks: int, locked: sqlite3.Connection) -> tuple[RetryPolicy, list[float]]:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == looks:
            locked.execute("ROLLBACK")

    return RetryPolicy(sleep=sleep, monotonic=lambda: sum(slept)), slept


def test_a_locked_database_is_waited_for_and_the_wait_is_told(
    tmp_path: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    retry, slept = let_go_after(3, locked)
    # A reader of a database in WAL mode is not in the way of a writer.
    database = Database(open_engine(f"sqlite:///{tmp_path / 'study.db'}"), retry=retry)
    database.execute(text("CREATE TABLE waited (number INTEGER)"))
    database.close()
    assert len(slept) == 3
    assert "another process holds the lock of the storage sqlite:///" in caplog.text
    assert "waiting" in caplog.text


def test_a_database_that_is_locked_when_it_is_opened_is_waited_for(
    tmp_path: Path, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    locked.execute("ROLLBACK")
    locked.execute("PRAGMA journal_mode=DELETE")  # as a backup program may leave it
    locked.execute("BEGIN EXCLUSIVE")
    retry, slept = let_go_after(2, locked)
    open_engine(f"sqlite:///{tmp_path / 'study.db'}", retry=retry).dispose()
    assert len(slept) == 2
    assert "waiting" in caplog.text


def test_a_lock_that_stays_ends_with_a_message_in_time(
    tmp_path: Path, locked: sqlite3.Connection
) -> None:
    slept: list[float] = []
    retry = RetryPolicy(60.0, sleep=slept.append, monotonic=lambda: sum(slept))
    database = Database(open_engine(f"sqlite:///{tmp_path / 'study.db'}"), retry=retry)
    with pytest.raises(StoreError, match="another process has locked the database for 6") as caught:
        database.execute(text("CREATE TABLE waited (number INTEGER)"))
    assert "finished trials are kept" in str(caught.value)
    assert 60 <= sum(slept) < 80
    database.close()


def test_a_row_that_is_no_json_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    database = Database(open_engine(url))
    database.execute(
        text("CREATE TABLE odd (fields TEXT)"),
        text("INSERT INTO odd VALUES ('{not json')"),
    )
    with pytest.raises(StoreError, match="a row of the database is damaged"):
        database.read(text("SELECT fields FROM odd").columns(fields=JSON))
    database.close()


def damaged_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))


def foreign_file(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 100)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 4096 * 3])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damaged_page, "the database is damaged"),
        (cut_off, "the database is damaged"),
        (foreign_file, "is no SQLite database"),
    ],
)
def test_a_damaged_database_is_told_with_what_can_be_done(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "study.db"
    open_engine(f"sqlite:///{path}").dispose()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    damage(path)

    def look() -> None:
        database = Database(open_engine(f"sqlite:///{path}"))
        database.read(text("SELECT * FROM trials"))
        database.read(text("SELECT * FROM studies"))

    with pytest.raises(StoreError, match=said) as caught:
        look()
    assert "restore" in str(caught.value)
    assert "folder exists" not in str(caught.value)


def test_an_interrupt_waits_for_the_end_of_a_transaction(storage_url: str) -> None:
    database = Database(open_engine(storage_url))
    create = "CREATE TABLE kept (number INTEGER)"
    database.write(lambda connection: connection.exec_driver_sql(create))

    def work(connection: Connection) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        connection.exec_driver_sql("INSERT INTO kept VALUES (1)")

    with pytest.raises(KeyboardInterrupt):
        database.write(work)
    assert database.read(text("SELECT number FROM kept")) == [(1,)]
    database.close()


def test_a_server_without_a_free_connection_is_waited_for_before_the_first_one() -> None:
    slept: list[float] = []
    full = OperationalError("select 1", {}, Exception("FATAL:  sorry, too many clients already"))
    answers = iter([full, full])

    def connect() -> str:
        for error in answers:
            raise error
        return "connected"

    retry = RetryPolicy(60.0, slept.append, lambda: sum(slept))
    assert retry.run(parse_url("postgresql://nobody@nowhere/none"), connect) == "connected"
    assert len(slept) == 2
