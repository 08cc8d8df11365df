"""Uploads of one server by several requests at a time: files, and the users who sent them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qsearch.errors import SettingsError
from qsearch.server.queue import JobQueue
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import User
from qsearch.server.uploads import LEAST_FREE_BYTES, DiskFullError

ANN, BOB = User("ann", "submit"), User("bob", "submit")
SHA256, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    found = JobQueue(ServerOptions(tmp_path / "runs", max_studies=0))
    found.open(serve=False)
    found.uploads.folder.mkdir(parents=True)
    yield found
    found.close()


def sent(queue: JobQueue, size: int = 600) -> Path:
    """A file that has just arrived."""
    part = queue.uploads.folder / f".part-{threading.get_ident()}-{size}"
    part.write_bytes(b"x" * size)
    return part


def pausing(monkeypatch: pytest.MonkeyPatch, queue: JobQueue, name: str) -> None:
    """Let the calls of one question to the store wait for each other, as far as they can."""
    together = threading.Barrier(2)
    asked: Callable[..., Any] = getattr(queue.repository, name)

    def ask(*args: Any, **given: Any) -> Any:
        found = asked(*args, **given)
        try:
            together.wait(0.3)
        except threading.BrokenBarrierError:
            together.reset()
        return found

    monkeypatch.setattr(queue.repository, name, ask)


def test_a_file_that_one_user_forgets_stays_while_another_sends_it(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.uploads.keep(ANN, sent(queue), SHA256, "npz", 600)
    pausing(monkeypatch, queue, "forget_upload")
    pausing(monkeypatch, queue, "uploads_of")
    with ThreadPoolExecutor(2) as pool:
        forgotten = pool.submit(queue.uploads.forget, ANN, SHA256)
        pool.submit(queue.uploads.keep, BOB, sent(queue, 601), SHA256, "npz", 601).result()
        forgotten.result()
    assert queue.uploads.owned(BOB, SHA256, "npz") is not None
    assert queue.uploads.owned(ANN, SHA256, "npz") is None


def test_a_file_is_not_forgotten_while_a_study_with_it_is_submitted(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.uploads.keep(ANN, sent(queue), SHA256, "npz", 600)
    settings = {"model": "digits", "trials": 2, "calib": f"{SHA256}.npz"}
    pausing(monkeypatch, queue, "jobs")
    with ThreadPoolExecutor(2) as pool:
        forgotten = pool.submit(queue.forget_upload, ANN, SHA256)
        submitted = pool.submit(queue.submit, ANN, settings, name="mine")
        errors = [forgotten.exception(), submitted.exception()]
    assert [type(error) for error in errors if error] == [SettingsError]
    assert (queue.uploads.owned(ANN, SHA256, "npz") is None) == (errors[0] is None)


def test_a_file_that_is_sent_once_more_is_listed_once(queue: JobQueue) -> None:
    for _ in range(2):
        kept = queue.uploads.keep(ANN, sent(queue), SHA256, "npz", 600)
        assert (kept.sha256, kept.bytes) == (SHA256, 600)
    assert len(queue.repository.uploads_of(queue.server, "ann")) == 1


def test_a_file_that_would_fill_the_disk_is_refused(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=LEAST_FREE_BYTES + 1000)
    monkeypatch.setattr("qsearch.server.uploads.shutil.disk_usage", lambda _: free)
    queue.uploads.require_room(1000)
    with pytest.raises(DiskFullError, match="disk of the server is full"):
        queue.uploads.require_room(1001)
