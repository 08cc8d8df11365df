"""Find studies: in one storage, one run folder, or every run folder of a folder."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qsearch.errors import EmptyStoreError, SearchError, StoreError
from qsearch.run.run_folder import RunFolder
from qsearch.store.artifacts import ArtifactStore
from qsearch.store.engine import RetryPolicy, open_reader, parse_url
from qsearch.store.records import Study
from qsearch.store.repository import Repository

_RETRY: Final = RetryPolicy(5.0)
"""A page is better told that the storage does not answer than kept waiting."""

_KEY: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})")


class NotFoundError(SearchError):
    """Error: the address names nothing that is there."""

    http_status = 404


def elsewhere(what: str, where: str) -> NotFoundError:
    """The error for a file of a study that another machine or folder has."""
    fix = "start the dashboard on the folder of its run folders: qsearch dashboard DIR"
    return NotFoundError(f"{what} on this machine", where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class Source:
    """One database.

    Attributes:
        key: eight hexadecimal digits that stay the same when the server starts again.
        url: of the database, with its password.
        folder: the run folder it lies in; None where studies of many folders share a storage.
    """

    key: str
    url: str
    folder: Path | None = None


@dataclass(slots=True)
class Sources:
    """The databases that one dashboard shows; safe to use from several threads.

    Args:
        root: a run folder, or a folder of run folders.
        storage: a database that is shown beside those in folders.
        submitted: folder of the run folders that users submitted, where there is a queue.
    """

    root: Path
    storage: str | None = None
    submitted: Path | None = None
    _open: dict[str, Repository] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self) -> list[Source]:
        """Return the sources that are there now; a folder is looked through again each time."""
        shared = [] if self.storage is None else [self.of(None)]
        if RunFolder(self.root).database.is_file():
            folders = [self.root]
        else:
            folders = []
        for root in () if folders else self._roots():
            if root.is_dir():
                folders += sorted(p for p in root.iterdir() if RunFolder(p).database.is_file())
        own = [self.of(folder) for folder in folders]
        keys = {source.key for source in shared}
        return shared + [source for source in own if source.key not in keys]

    def of(self, folder: Path | None) -> Source:
        """The database of a run folder, or the shared one."""
        if folder is None:
            assert self.storage is not None
            return _source(self.storage, None)
        return _source(f"sqlite:///{RunFolder(folder).database.absolute()}", folder)

    def studies(self) -> Iterator[tuple[Source, Repository, Study]]:
        """Every study, source by source; a folder that cannot be read is passed over.

        A database that a search is only just making holds no study yet.

        Raises:
            StoreError: the only storage cannot be read.
        """
        sources = self.all()
        for source in sources:
            try:
                repository = self.repository(source)
                found = repository.studies()
            except EmptyStoreError:
                continue
            except StoreError:
                if len(sources) == 1:
                    raise
                continue
            for study in found:
                yield source, repository, study

    def find(self, key: str) -> tuple[Source, Repository, int]:
        """The database of a study's key, and the study's id there.

        Raises:
            NotFoundError: no such key.
        """
        match = _KEY.fullmatch(key)
        if match is not None:
            for source in self.all():
                if source.key == match[1]:
                    return source, self.repository(source), int(match[2])
        raise NotFoundError("there is no such study", where=key[:64], fix="see /api/v1/studies")

    def repository(self, source: Source) -> Repository:
        """A reader of the source, opened at first use."""
        with self._lock:
            if source.key not in self._open:
                self._open[source.key] = Repository(
                    open_reader(source.url, retry=_RETRY), retry=_RETRY
                )
            return self._open[source.key]

    def run_folder(self, source: Source, study: Study) -> RunFolder | None:
        """The run folder of a study, where this machine has it."""
        if source.folder is not None:
            return RunFolder(source.folder)
        # Names come from a database that others write: a name is a folder's, never a path.
        plain = "\0" not in study.name and Path(study.name).name == study.name
        if plain:
            named = [root / study.name for root in self._roots()]
        else:
            named = []
        for folder in (*named, self.root):
            owner = RunFolder(folder).owner()
            if owner is not None and owner[0] == study.model_sha256:
                return RunFolder(folder)
        return None

    def _roots(self) -> list[Path]:
        if self.submitted is None:
            return [self.root]
        return [self.submitted, self.root]

    def artifacts(self, source: Source, study: Study) -> ArtifactStore | None:
        """The study's files by sha256."""
        folder = self.run_folder(source, study)
        if folder is None:
            return None
        return ArtifactStore(folder.artifacts)

    def close(self) -> None:
        """Release every connection."""
        with self._lock:
            for repository in self._open.values():
                repository.close()
            self._open.clear()


def study_key(source: Source, study: Study) -> str:
    """Return the name of a study in addresses."""
    return f"{source.key}-{study.id}"


def _source(url: str, folder: Path | None) -> Source:
    # The password is left out: a key is shown, and short hashes can be guessed back.
    name = parse_url(url).set(password=None).render_as_string()
    return Source(hashlib.sha256(name.encode()).hexdigest()[:8], url, folder)
