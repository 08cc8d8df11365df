"""Contents: the files of a dataset as they were hashed, and whether they still hold the same.

A search names its data by their hash, so a file that is replaced while the search runs would give
scores of other samples under the name of the old ones. Every process hashes a dataset when it opens
it, and looks at the state of each file after it has read from it. A large file whose state is
still that of its hash is not hashed again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from compiler.errors import raised_as
from compiler.lru_cache import LRUCache
from workers.datasets.protocol import Batch, Dataset, WrappedDataset
from workers.errors import DataChangedError, DatasetError

_LARGE: Final = 1 << 20


_State = tuple[int, ...]
_state_of: Callable[[os.stat_result], _State] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"
)
"""State of a file in the file system; a write or a replacement changes it."""

_HASHES: Final[LRUCache[str]] = LRUCache(256)
"""Hashes of the large files of this process, by state."""

_SETTLED_NS: Final = 1_000_000_000
"""A file that was changed less than this ago may change again and keep its state."""


def files_below(root: Path) -> Iterator[Path]:
    """Files of a folder in order; the folders directly in it may be links to others."""
    for entry in sorted(root.iterdir()):
        found = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
        yield from (path for path in found if path.is_file())


class Contents:
    """The sha256 of a file, or of every file of a folder, and when it was taken.

    Args:
        root: the file or folder.
    Raises:
        DatasetError: a file cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        # Keys are real paths: a file may be named through a link, or as data/../data/c.npz.
        self._hashes: dict[Path, str] = {}
        self._states: dict[Path, _State] = {}
        self._seen: dict[Path, _State] = {}  # as named; a link to another file has its state
        self._names: dict[str, Path] = {}
        for path in files_below(root) if root.is_dir() else [root]:
            real = path.resolve()
            self._names[path.relative_to(root).as_posix()] = real
            self._hashes[real], self._states[real] = _hashed(path)

    @property
    def sha256(self) -> str:
        """SHA-256 of a file; ``combined`` of a folder."""
        return self._hashes.get(self.root.resolve()) or self.combined()

    def combined(self, begin: bytes = b"") -> str:
        """Over ``begin``, the paths below the folder and the hash of each file."""
        digest = hashlib.sha256(begin)
        for name, real in self._names.items():
            digest.update(name.encode() + b"\0")
            digest.update(self._hashes[real].encode())
        return digest.hexdigest()

    def is_unchanged(self, path: Path) -> bool:
        """Return whether a file still holds what was hashed; it is read again where its state
        differs."""
        try:
            state = _state_of(path.stat())
            if state == self._seen.get(path):
                return True
            given = path
            path = path.resolve()
            if state == self._states.get(path):
                self._seen[given] = state
                return True
            sha256, state = _hashed(path)
        except (OSError, DatasetError):
            return False
        if sha256 != self._hashes.get(path):
            return False
        self._states[path] = state  # written again with the same bytes, or only touched
        return True


class PinnedDataset(WrappedDataset):
    """A dataset whose samples are refused once a file that they come from was changed.

    Args:
        dataset: opened after ``contents`` were read.
        contents: of its files.
    """

    def __init__(self, dataset: Dataset, contents: Contents) -> None:
        super().__init__(dataset)
        self._contents = contents

    def labels(self, samples: range) -> NDArray[Any] | None:
        self._check(samples)
        return self._dataset.labels(samples)

    def batch(self, samples: range) -> Batch:
        """A batch of the data, if they are still those that were hashed.

        Raises:
            DataChangedError: a file of these samples does not hold what was hashed.
        """
        try:
            batch = self._dataset.batch(samples)
        except (OSError, ValueError):  # DatasetError is a ValueError
            self._check(samples)
            raise
        # After the read: a change before it or meanwhile is seen now.
        self._check(samples)
        return batch

    def _check(self, samples: range) -> None:
        for path in self._dataset.files(samples):
            if not self._contents.is_unchanged(path):
                raise changed(path)


def changed(path: Path) -> DataChangedError:
    """The error of a file that does not hold what its hash was taken of."""
    if path.exists():
        happened = "was changed"
    else:
        happened = "was deleted or moved"
    return DataChangedError(
        f"the data {path.name} {happened} after the search had hashed it",
        where=str(path),
        fix="put the earlier data back, on every machine with workers, and run the same command "
        "again: finished trials are kept. For other data give another folder with -o, or --fresh",
    )


def _hashed(path: Path) -> tuple[str, _State]:
    """The hash of a file and its state before the first byte was read."""
    what = f"the data {path.name} cannot be read"
    fix = "check that the file is there and may be read, on every machine with workers"
    with (
        raised_as(DatasetError, what, OSError, where=str(path), fix=fix),
        path.open("rb") as file,
    ):
        facts = os.fstat(file.fileno())
        state = _state_of(facts)

        def read() -> str:
            return hashlib.file_digest(file, "sha256").hexdigest()

        settled = facts.st_ctime_ns + _SETTLED_NS < time.time_ns()
        if settled and facts.st_size > _LARGE:
            sha256 = _HASHES.get(state, read)
        else:
            sha256 = read()
    return sha256, state
