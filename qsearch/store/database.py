"""Transactions over one engine: whole, retried while a server restarts, told without secrets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, text

from compiler.errors import raised_as
from qsearch.errors import StoreError
from qsearch.store.engine import RetryPolicy, shown_url
from qsearch.store.records import record_of

T = TypeVar("T")

_CONNECTIONS: Final = text(
    "SELECT current_setting('max_connections')::int"
    " - current_setting('superuser_reserved_connections')::int"
)


@dataclass(eq=False)
class Database:
    """One engine and a clock; every piece of work is one transaction.

    A PostgreSQL server that restarts is waited for and the transaction is run again, so each must
    have the same effect when it runs twice. So is the lock of a SQLite database. Ctrl-C takes
    effect between transactions.

    Args:
        engine: from ``open_engine`` or ``open_reader``.
        clock: gives UTC seconds since 1970; nothing but what people read depends on it.
        retry: with a server that went away and with a lock of SQLite.
    """

    engine: Engine
    clock: Callable[[], float] = time.time
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def shared(self) -> bool:
        """Return whether several drivers may work on one study: PostgreSQL, not SQLite."""
        return self.engine.dialect.name == "postgresql"

    def most_connections(self) -> int | None:
        """Connections that a server has for ordinary users; None where there is no server."""
        if self.shared:
            return int(self.read(_CONNECTIONS)[0][0])
        return None

    def close(self) -> None:
        """Release the connections; the next statement opens another."""
        self.engine.dispose()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a writing transaction: all of it is stored or nothing.

        Raises:
            IntegrityError: a unique constraint; nothing was stored.
            StoreError: the database does not answer, is full or refuses.
        """

        def attempt() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        return self.retry.run(self.engine.url, attempt, comes_back=self.shared)

    def execute(self, *statements: Executable) -> int:
        """Run statements in one writing transaction; rows touched by the last one."""

        def work(connection: Connection) -> int:
            touched = 0
            for statement in statements:
                result: CursorResult[Any] = connection.execute(statement)
                touched = result.rowcount
            return touched

        return self.write(work)

    def read(self, statement: Any, given: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """All rows of a query.

        Args:
            given: values of its parameters.
        Raises:
            StoreError: the database does not answer.
        """

        # One statement is a transaction of its own: no BEGIN and ROLLBACK go to a server.
        options = {"isolation_level": "AUTOCOMMIT"} if self.shared else {"reader": True}

        def attempt() -> Sequence[Any]:
            damaged = raised_as(
                StoreError,
                "a row of the database is damaged",
                ValueError,  # JSON that is none, or text that is not UTF-8
                where=shown_url(self.engine.url),
                fix="restore the database from a copy, or start over with another",
            )
            with self.engine.connect().execution_options(**options) as connection, damaged:
                return connection.execute(statement, given).all()

        return self.retry.run(self.engine.url, attempt, comes_back=self.shared)

    def records(
        self, kind: type[T], statement: Any, given: Mapping[str, Any] | None = None
    ) -> list[T]:
        """The rows of ``read`` as records of a kind."""
        return [record_of(kind, row) for row in self.read(statement, given)]
