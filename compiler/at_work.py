"""Name the node that is worked on, for errors and for whoever watches the limits of a process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol


class Observer(Protocol):
    """Keeps the name of the node that was reported last."""

    @property
    def name(self) -> str:
        """The name."""

    def report(self, name: str) -> None:
        """Take the name of the next node."""


_OBSERVER: Final[ContextVar[Observer | None]] = ContextVar("observer", default=None)


def observe(observer: Observer) -> None:
    """Report every node to the observer, before it is worked on."""
    _OBSERVER.set(observer)


def at_work(name: Callable[[Any], str], node: Any) -> None:
    """Report a node.

    Args:
        name: gives the name of the node; called if there is an observer.
    """
    observer = _OBSERVER.get()
    if observer is not None:
        observer.report(name(node))


def last_node() -> str:
    """Return the name that was reported last; "" without an observer."""
    observer = _OBSERVER.get()
    if observer is None:
        return ""
    return observer.name
