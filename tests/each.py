"""Loops of assertions that run at least once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def each(items: Iterable[T]) -> Iterator[T]:
    """The items; fails where there are none, because a loop over them would prove nothing."""
    empty = True
    for item in items:
        empty = False
        yield item
    assert not empty, "a loop of assertions over nothing"
