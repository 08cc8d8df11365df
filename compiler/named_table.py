"""NamedTable: one implementation per name, filled by decorators; names come from users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from compiler.errors import CompilerError, legal_names

T = TypeVar("T")


class NamedTable(Generic[T]):
    """Implementations of one kind of thing (calibration modes, metrics, datasets …) by name.

    Args:
        noun: what an entry is, for messages: "calibrate_mode".
        error: raised for an unknown name; also a ValueError where callers expect one.
    """

    def __init__(self, noun: str, error: type[CompilerError] = CompilerError) -> None:
        self.noun = noun
        self._error = error
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

    def require(self, name: str) -> T:
        """The entry of this name.

        Raises:
            the table's error: there is none; the message lists the legal names, nearest first.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise self._error(
                f"unknown {self.noun} {name!r}", fix=legal_names(str(name), self._entries)
            )
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> Iterator[str]:
        """Registered names, sorted."""
        return iter(sorted(self._entries))
