"""Transactions while a server is away, and when Ctrl-C comes in the middle of one."""

from __future__ import annotations

import os
import signal

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from qsearch.errors import StoreError
from qsearch.store.database import Database
from qsearch.store.engine import open_engine


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
            patience_s=patience_s,
            sleep=slept.append,
            monotonic=lambda: sum(slept),
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
    database = Database(open_engine(postgres_url), sleep=slept.append)
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
        Database(database.engine, patience_s=-1.0).write(cut_off)
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


def test_sqlite_is_not_waited_for(storage_url: str) -> None:
    database = Database(open_engine(storage_url), sleep=lambda _s: pytest.fail("waited"))
    if database.shared:
        database.close()
        return

    def work(_connection: object) -> None:
        raise gone()

    with pytest.raises(StoreError):
        database.write(work)
    database.close()


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
