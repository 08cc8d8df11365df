"""The queue of a server and its books of uploads, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qsearch.errors import ConflictError
from qsearch.store.engine import open_engine
from qsearch.store.records import Failure, NewJob, Upload
from qsearch.store.repository import Repository
from tests.qsearch.store.test_repository import Clock

HERE = "here"


@pytest.fixture
def queue(storage_url: str) -> Iterator[Repository]:
    found = Repository(open_engine(storage_url), Clock())
    yield found
    found.close()


def new_job(name: str = "mine", server: str = HERE) -> NewJob:
    return NewJob(server, name, "ann", {"model": "digits", "trials": 8}, 8)


def test_a_job_is_queued_run_and_ended_once(queue: Repository) -> None:
    job = queue.add_job(new_job())
    assert (job.state, job.owner, job.settings["trials"]) == ("queued", "ann", 8)
    assert queue.start_job(job.id)
    assert not queue.start_job(job.id), "another server thread came first"
    queue.note_driver(job.id, 4711)
    assert queue.end_job(job.id, "failed", 2, Failure("no memory", "worker", "add some"))
    assert not queue.end_job(job.id, "done", 0)
    (ended,) = queue.jobs(HERE, states=["failed"])
    assert ended.failure == Failure("no memory", "worker", "add some")
    assert (ended.pid, ended.exit_code) == (4711, 2)


def test_a_name_belongs_to_one_job_of_a_server(queue: Repository) -> None:
    queue.add_job(new_job())
    with pytest.raises(ConflictError, match="'mine'"):
        queue.add_job(new_job())
    assert queue.add_job(new_job(server="there")).server == "there"
    assert len(queue.jobs(HERE)) == 1


def test_a_job_whose_driver_died_waits_again_and_keeps_its_place(queue: Repository) -> None:
    first, second = queue.add_job(new_job("one")), queue.add_job(new_job("two"))
    queue.start_job(first.id)
    assert queue.requeue_job(first.id, attempts=1, delay_s=5)
    assert not queue.requeue_job(second.id, attempts=1)
    one, two = queue.jobs(HERE, states=["queued"])
    assert (one.name, one.attempts, two.name) == ("one", 1, "two")
    assert one.retry_at is not None
    assert one.retry_at > one.created_at


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_marked(queue: Repository) -> None:
    waits, runs = queue.add_job(new_job("waits")), queue.add_job(new_job("runs"))
    queue.start_job(runs.id)
    assert queue.cancel_job(waits.id)
    assert queue.cancel_job(runs.id)
    states = {job.name: (job.state, job.cancelled) for job in queue.jobs(HERE)}
    assert states == {"waits": ("cancelled", True), "runs": ("running", True)}
    queue.end_job(runs.id, "done", 0)
    assert not queue.cancel_job(runs.id)
    assert queue.reopen_job(runs.id, {"trials": 16}, 16)
    (again,) = queue.jobs(HERE, name="runs")
    assert (again.state, again.cancelled, again.exit_code, again.trials) == (
        "queued",
        False,
        None,
        16,
    )


def test_only_what_ended_is_deleted(queue: Repository) -> None:
    job = queue.add_job(new_job())
    queue.delete_job(job.id)
    queue.start_job(job.id)
    queue.delete_job(job.id)
    assert queue.jobs(HERE) != []
    queue.end_job(job.id, "done", 0)
    queue.delete_job(job.id)
    assert queue.jobs(HERE) == []
    assert queue.job(job.id) is None


def test_equal_uploads_of_two_users_are_one_file(queue: Repository) -> None:
    file = Upload("a" * 64, "npz", 1000, 1.0)
    for owner in ("ann", "ann", "bob"):
        queue.add_upload(HERE, owner, file)
    assert queue.uploads_of(HERE, "ann") == [file]
    assert queue.forget_upload(HERE, "ann", file.sha256) == 1
    assert queue.forget_upload(HERE, "bob", file.sha256) == 0
