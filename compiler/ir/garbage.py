"""Python's cyclic garbage collector rests while a graph is read, rewritten or written.

Nodes are frozen and refer to their operands only, so they form no cycles and reference counts free
them. The collector would still walk all of them again and again: on a graph of 100,000 operators
it takes half of a pass's time, and a share that grows with the graph.

What a stage knows of the nodes must form no cycle either (a method bound to its owner does, and
lists of users beside operands): it would hold the graphs between the passes until the collector
comes. Source: CPython's documentation of the modules gc and weakref.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Rest:
    """How many calls want the collector to rest; it is one per process, and so is this."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        """One more call."""
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        """One less; the last one wakes the collector if it was awake before the first."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                gc.enable()


_REST = _Rest()


def collector_rests(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: no cyclic garbage is collected while ``function`` runs, in any thread."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _REST.begin()
        try:
            return function(*args, **kwargs)
        finally:
            _REST.end()

    return call


def give_back_memory() -> None:
    """Return what was freed to the system, where glibc would keep it: a process that has loaded a
    network of 100 MB several times keeps holes of 800."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        _c_library().malloc_trim(0)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # each one is a cycle
