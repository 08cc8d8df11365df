"""Large values of requests: the value itself, or a Handle whose value a worker fetches once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.ir.blob import ModuleBlob
from compiler.ir.module import IRModule
from compiler.lru_cache import LRUCache
from workers.errors import WorkerError
from workers.messages import Handle

_KEPT = 6
"""Values that one worker holds."""
_MODULES = 2
"""Modules that one worker holds beside them."""


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


def find(values: Mapping[str, Any], handle: Handle) -> Any:
    """The value of a handle among those that one pool stored.

    Raises:
        WorkerError: another pool stored it.
    """
    if handle.key not in values:
        raise WorkerError(f"the handle {handle.key[:12]} was put into another pool")
    return values[handle.key]


class ObjectStore:
    """Resolves the handles of requests in one worker; the last few values stay in memory.

    Args:
        fetch: finds the value of a handle that is not in memory.
    """

    def __init__(self, fetch: Callable[[Handle], Any]) -> None:
        self._fetch = fetch
        self._cache: LRUCache[Any] = LRUCache(_KEPT)
        self._modules: LRUCache[IRModule] = LRUCache(_MODULES)

    def value(self, given: Any) -> Any:
        """The value itself; handles are looked up."""
        if isinstance(given, Handle):
            return self._cache.get(given.key, lambda: self._fetch(given))
        return given

    def module(self, blob: Any) -> IRModule:
        """The module of a packed one, which is parsed once."""
        return self._modules.get(self.key(blob), lambda: ModuleBlob(self.value(blob)).unpack())

    @staticmethod
    def key(given: Any) -> str:
        """Key of the value, without fetching it."""
        if given is None:
            return ""
        if isinstance(given, Handle):
            return given.key
        return content_key(given)
