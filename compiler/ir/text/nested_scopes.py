"""Scopes nest as deep as memory has room: each runs as a generator, on a stack of its own."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

R = TypeVar("R")


def drive(first: Generator[Any, R, R]) -> R:
    """Run a scope; a yielded one runs to its end before the one that asked goes on."""
    stack = [first]
    result: R | None = None
    while stack:
        try:
            stack.append(next(stack[-1]) if result is None else stack[-1].send(result))
            result = None
        except StopIteration as stop:
            stack.pop()
            result = stop.value
    assert result is not None
    return result
