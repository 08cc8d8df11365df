"""Large values of requests: the value itself, or a Handle whose value a worker fetches once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from workers.errors import WorkerError
from workers.messages import Handle

T = TypeVar("T")


class LRUCache(Generic[T]):
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


def content_key(value: Any) -> str:
    """sha256 over bytes, an array, or a sequence or mapping of arrays.

    Raises:
        WorkerError: a value of another kind.
    """
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        digest.update(value)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for name in sorted(value):
            digest.update(str(name).encode())
            _feed(digest, value[name])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            _feed(digest, item)
    else:
        raise WorkerError(
            f"a {type(value).__name__} cannot be stored for workers", fix="bytes or numpy arrays"
        )


class ObjectStore:
    """Resolves the handles of requests in one worker; the last few values stay in memory.

    Args:
        fetch: finds the value of a handle that is not in memory.
        keep: how many.
    """

    def __init__(self, fetch: Callable[[Handle], Any], keep: int = 6) -> None:
        self._fetch = fetch
        self._cache: LRUCache[Any] = LRUCache(keep)

    def value(self, given: Any) -> Any:
        """The value itself; handles are looked up."""
        if isinstance(given, Handle):
            return self._cache.get(given.key, lambda: self._fetch(given))
        return given

    @staticmethod
    def key(given: Any) -> str:
        """What identifies the value, without fetching it."""
        return given.key if isinstance(given, Handle) else content_key(given)
