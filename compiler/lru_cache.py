"""LRUCache: the values that were used last, made when they are asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class LRUCache(Generic[T]):
    """Cache of at most ``size`` values; the one not used for longest goes first.

    Threads may share a cache; two that ask for a missing value at once both make it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made now unless it is still held."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            # Room first: the old value and the new one together would be the peak of memory.
            self._make_room()
        value = make()
        self.put(key, value)
        return value

    def put(self, key: Hashable, value: T) -> None:
        """Hold a value that was made elsewhere."""
        with self._lock:
            if key not in self._values:
                self._make_room()
            self._values[key] = value
            self._values.move_to_end(key)

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()

    def _make_room(self) -> None:
        while len(self._values) >= self._size:
            self._values.popitem(last=False)
