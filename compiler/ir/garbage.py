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
from functools import cache
from threading import Lock


class _Rest(contextlib.ContextDecorator):
    """Number of calls that want the collector to rest; it is one per process, and so is this."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        """One more call."""
        with self._lock:
            if self._count == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def __exit__(self, *_error: object) -> None:
        """One less; the last one wakes the collector if it was awake before the first."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_enabled:
                gc.enable()


collector_rests = _Rest()
"""Decorator: no cyclic garbage is collected while a function runs, in any thread."""


def give_back_memory() -> None:
    """Return what was freed to the system, where glibc would keep it: a process that has loaded a
    network of 100 MB several times keeps holes of 800."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        _c_library().malloc_trim(0)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # each one is a cycle
