"""NamedTable: one implementation per name, filled by decorators; names come from users."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from compiler.errors import CompilerError, legal_names

T = TypeVar("T")


class NamedTable(Generic[T]):
    """Implementations of one kind of thing (calibration modes, metrics, datasets …) by name.

    Args:
        noun: what an entry is, for messages: "calibrate_mode".
        error: raised for an unknown name; also a ValueError where callers expect one.
        filled_by: name of the package whose import fills the table, where that is not the module
            that defines it; the package is loaded when the table is first asked.
    """

    def __init__(
        self, noun: str, error: type[CompilerError] = CompilerError, *, filled_by: str | None = None
    ) -> None:
        self.noun = noun
        self._error = error
        self._filled_by = filled_by
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: the decorated object answers to ``name``.

        Raises:
            CompilerError: the name is taken.
        """

        def add(entry: T) -> T:
            if name in self._entries:
                raise CompilerError(f"{self.noun} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def discard(self, name: str) -> None:
        """Forget the entry of this name, if there is one."""
        self._entries.pop(name, None)

    def require(self, name: str) -> T:
        """The entry of this name.

        Raises:
            the table's error: there is none; the message lists the legal names, nearest first.
        """
        if name in self._entries:
            entries = self._entries
        else:
            entries = self._filled()
        entry = entries.get(name)
        if entry is None:
            raise self._error(
                f"unknown {self.noun} {name!r}", fix=legal_names(str(name), self._entries)
            )
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._filled()

    def names(self) -> Iterator[str]:
        """Registered names, sorted."""
        return iter(sorted(self._filled()))

    def _filled(self) -> dict[str, T]:
        """Every entry."""
        if self._filled_by is not None:
            importlib.import_module(self._filled_by)
        return self._entries
