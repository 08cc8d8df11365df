"""Recent: the few values that were used last, made when they are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Cache of at most ``size`` values; the one not used for longest goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made now unless it is still held."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        # Room first: the old value and the new one together would be the peak of memory.
        while len(self._values) >= self._size:
            self._values.popitem(last=False)
        value = self._values[key] = make()
        return value

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
