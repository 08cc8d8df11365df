"""Transactions over one engine: whole, retried while a server restarts, told without secrets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from qsearch.interrupts import interrupts_kept
from qsearch.store.engine import masked, unreachable

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""How long a server that went away may take to come back."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

log = logging.getLogger("qsearch.store")


class Database:
    """One engine and a clock; every piece of work is one transaction.

    A PostgreSQL server that restarts is waited for and the transaction is run again, so each must
    have the same effect when it runs twice. SQLite waits for its lock by itself. Ctrl-C takes
    effect between transactions.

    Args:
        engine: from ``open_engine`` or ``open_reader``.
        clock: gives UTC seconds since 1970; nothing but what people read depends on it.
        patience_s: how long to wait for a server.
        sleep, monotonic: for tests.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.time,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._patience_s = patience_s
        self._sleep = sleep
        self._monotonic = monotonic

    @property
    def shared(self) -> bool:
        """Whether several drivers may work on one study: PostgreSQL, not SQLite."""
        return self.engine.dialect.name == "postgresql"

    def close(self) -> None:
        """Release the connections."""
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

        return self._patiently(attempt)

    def execute(self, *statements: Executable) -> int:
        """Run statements in one writing transaction; rows touched by the last one."""

        def work(connection: Connection) -> int:
            touched = 0
            for statement in statements:
                result: CursorResult[Any] = connection.execute(statement)
                touched = result.rowcount
            return touched

        return self.write(work)

    def read(self, statement: Any) -> Sequence[Any]:
        """All rows of a query.

        Raises:
            StoreError: the database does not answer.
        """

        def attempt() -> Sequence[Any]:
            with self.engine.connect().execution_options(reader=True) as connection:
                return connection.execute(statement).all()

        return self._patiently(attempt)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        begin, pause = self._monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                with interrupts_kept():
                    return attempt()
            except IntegrityError:
                raise
            except SQLAlchemyError as error:
                gone = self.shared and isinstance(error, OperationalError | InterfaceError)
                if not gone or self._monotonic() - begin > self._patience_s:
                    raise unreachable(self.engine.url, error) from error
                if pause == _FIRST_PAUSE_S:
                    log.warning("waiting for the storage %s", masked(self.engine.url))
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
