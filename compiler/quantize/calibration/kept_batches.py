"""Batches of a generator, kept so that calibration can read them twice."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Batch = Mapping[str, NDArray[Any]]
"""Input name → array; names that the network lacks are ignored."""

IN_MEMORY: Final = 256 << 20
"""Bytes of batches that are kept in memory; beyond them all lie in a temporary file."""


class KeptBatches:
    """Batches that an iterator gave, readable any number of times.

    Args:
        batches: read to its end at once; arrays of objects, which no network takes, are left out.
        in_memory: bytes beyond which a temporary file holds the arrays.
    """

    def __init__(self, batches: Iterator[Batch], in_memory: int = IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 - closed by finalize
        weakref.finalize(self, self._file.close)
        self._offsets: list[dict[str, int]] = []
        for batch in batches:
            offsets = {}
            for name, value in batch.items():
                array = np.asarray(value)
                if array.dtype != object:
                    offsets[name] = self._file.tell()
                    np.save(self._file, array, allow_pickle=False)
            self._offsets.append(offsets)

    def __iter__(self) -> Iterator[Batch]:
        for offsets in self._offsets:
            yield {name: self._array_at(offset) for name, offset in offsets.items()}

    def _array_at(self, offset: int) -> NDArray[Any]:
        self._file.seek(offset)
        array: NDArray[Any] = np.load(self._file, allow_pickle=False)
        return array


def repeatable(dataset: Iterable[Batch]) -> Iterable[Batch]:
    """Return the dataset; ``KeptBatches`` of one that can be read only once."""
    once = iter(dataset)
    if once is dataset:
        return KeptBatches(once)
    return dataset
