"""The queue without drivers: who may submit what, and in which order it runs."""

from __future__ import annotations

import fcntl
import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from qsearch.errors import ConflictError, DataError, SettingsError
from qsearch.exit_codes import EXIT_SEARCH_FAILED
from qsearch.server.driver import MOST_DEATHS, Drivers, delay_after, main, note_study
from qsearch.server.queue import ForbiddenError, JobQueue, TooManyStudiesError
from qsearch.server.submission import (
    OPTIONS,
    ServerOptions,
    failure_of,
    launch_settings,
    model_name,
)
from qsearch.server.tokens import OPERATOR, User
from qsearch.store.engine import open_engine
from qsearch.store.records import Ended, NewStudy, NewTrial, Outcome, Upload
from qsearch.store.repository import Repository
from workers.errors import LostClusterError

ANN, BOB = User("ann", "submit"), User("bob", "submit")
DIGITS = {"model": "digits", "trials": 8}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., JobQueue]]:
    """``opened(max_studies=0)``: a queue that starts nothing."""
    queues: list[JobQueue] = []

    def make(**options: Any) -> JobQueue:
        root, clock = tmp_path / options.pop("root", "runs"), options.pop("clock", time.time)
        queue = JobQueue(ServerOptions(root, **{"max_studies": 0, **options}), clock=clock)
        queue.open(serve=False)
        queues.append(queue)
        return queue

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def queue(opened: Callable[..., JobQueue]) -> JobQueue:
    return opened(workers=2, pools=("process", "ray"), address="10.0.0.1:6379")


def names(queue: JobQueue) -> list[str]:
    places = {place: job.name for job, place in queue.jobs() if place is not None}
    return [places[place] for place in sorted(places)]


def test_users_take_turns_and_of_one_user_older_studies_go_first(queue: JobQueue) -> None:
    for name in ("a1", "a2", "a3"):
        queue.submit(ANN, DIGITS, name=name)
    queue.submit(BOB, DIGITS, name="b1")
    queue.submit(BOB, DIGITS, name="b2")
    assert names(queue) == ["a1", "b1", "a2", "b2", "a3"]


def test_the_same_submission_is_the_same_job_and_another_gets_another_name(queue: JobQueue) -> None:
    first = queue.submit(ANN, DIGITS, stem="digits")
    assert queue.submit(ANN, DIGITS, stem="digits") == first
    other = queue.submit(ANN, {**DIGITS, "seed": 1}, stem="digits")
    theirs = queue.submit(BOB, DIGITS, stem="digits")
    assert [first.name, other.name, theirs.name] == ["digits", "digits-2", "digits-3"]
    with pytest.raises(ConflictError, match="another study 'digits'"):
        queue.submit(BOB, DIGITS, name="digits")


def test_a_study_that_ended_goes_on_where_more_trials_are_asked_for(queue: JobQueue) -> None:
    job = queue.submit(ANN, DIGITS, name="mine")
    queue.repository.end_job(job.id, "done", 0)
    assert queue.submit(ANN, DIGITS, name="mine").state == "done"
    again = queue.submit(ANN, {**DIGITS, "trials": 12}, name="mine")
    assert (again.id, again.state, again.trials) == (job.id, "queued", 12)
    queue.cancel("mine", ANN)
    assert queue.submit(ANN, {**DIGITS, "trials": 12}, name="mine").state == "queued"


def test_users_change_their_own_jobs_and_the_operator_all(queue: JobQueue) -> None:
    queue.submit(ANN, DIGITS, name="mine")
    for who in (BOB, User("ann", "read")):
        with pytest.raises(ForbiddenError):
            queue.cancel("mine", who)
    assert queue.cancel("mine", OPERATOR).state == "cancelled"


def test_nobody_waits_for_the_many_studies_of_another_user(queue: JobQueue) -> None:
    now = [1_000_000.0]
    queue._clock = queue.repository.clock = lambda: now[0]
    for n in range(4):
        queue.submit(ANN, DIGITS, name=f"a{n}")
    queue.submit(BOB, DIGITS, name="patient")
    started = []
    for _ in range(5):
        now[0] += 1.0
        job = queue.job(names(queue)[0])
        assert queue.repository.start_job(job.id)
        queue.repository.end_job(job.id, "done", 0)
        started.append(job.name)
    assert started == ["a0", "patient", "a1", "a2", "a3"]


def test_a_study_waits_for_a_lost_cluster_eight_times(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_settings: Any, **_: Any) -> Any:
        raise LostClusterError("the head of the Ray cluster ended", where="cluster 10.0.0.1:6379")

    monkeypatch.setattr("qsearch.search.launch.run_search", lose)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    job = queue.submit(ANN, DIGITS, name="mine")
    for attempt in range(1, MOST_DEATHS + 1):
        assert queue.repository.start_job(job.id)
        monkeypatch.setattr("sys.stdin", io.StringIO(OPTIONS.dump_json(queue.options).decode()))
        before = time.time()
        with open(os.devnull) as lock:
            main(job.id, lock.fileno())
        after = time.time()
        job = queue.job("mine")
        assert job.failure is not None
        assert "head of the Ray cluster ended" in job.failure.what
        if attempt < MOST_DEATHS:
            assert (job.state, job.attempts) == ("queued", attempt)
            delay = delay_after(attempt + 1)
            assert before + delay <= (job.retry_at or 0.0) <= after + delay
    assert job.state == "failed"
    delays = [delay_after(deaths) for deaths in range(1, MOST_DEATHS + 1)]
    assert delays == sorted(delays)
    assert delays[-1] > 100


@pytest.mark.slow
def test_a_study_that_needs_more_memory_than_the_operator_gives_ends_and_says_so(
    tmp_path: Path,
) -> None:
    options = ServerOptions(tmp_path / "runs", max_studies=1, max_memory=512 << 20)
    queue = JobQueue(options)
    queue.open(serve=False)
    try:
        options.uploads.mkdir()
        name = f"{'a' * 64}.npz"
        with (
            zipfile.ZipFile(
                options.uploads / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1
            ) as z,
            z.open("input.npy", "w", force_zip64=True) as member,
        ):
            shape = (2_500_000, 1, 8, 8)  # 640 MB
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(10):
                member.write(bytes(64_000_000))
        queue.repository.add_upload(queue.server, "bob", Upload("a" * 64, "npz", 1, 0.0))
        queue.submit(BOB, {**DIGITS, "calib": name, "files": {"calib": "big.npz"}}, name="big")
        while (job := queue.job("big")).state in ("queued", "running"):
            queue.step()
            time.sleep(0.05)
        assert (job.state, job.exit_code) == ("failed", EXIT_SEARCH_FAILED)
        assert job.failure is not None
        assert "more than the 512 MiB of memory" in job.failure.what
        assert "--max-memory" in str(job.failure.fix)
    finally:
        queue.close()


@pytest.mark.postgres
def test_a_driver_keeps_no_connection_to_the_queue_while_its_study_runs(
    opened: Callable[..., JobQueue], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened(storage=postgres_url)
    of_all = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    before = queue.repository.read(of_all)[0][0]
    during: list[int] = []

    def search(_settings: Any, **_: Any) -> SimpleNamespace:
        end = time.monotonic() + 60
        while (count := queue.repository.read(of_all)[0][0]) > before and time.monotonic() < end:
            time.sleep(0.05)  # PostgreSQL ends a connection a moment after its client
        during.append(count)
        return SimpleNamespace(exit_code=0)

    monkeypatch.setattr("qsearch.search.launch.run_search", search)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.stdin", io.StringIO(OPTIONS.dump_json(queue.options).decode()))
    job = queue.submit(ANN, DIGITS, name="mine")
    assert queue.repository.start_job(job.id)
    with open(os.devnull) as lock:
        main(job.id, lock.fileno())
    assert queue.job("mine").state == "done"
    assert during == [before]


@pytest.mark.postgres
def test_a_server_says_that_its_studies_need_more_connections_than_there_are(
    opened: Callable[..., JobQueue], postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened(storage=postgres_url, max_studies=1)
    assert not caplog.records
    opened(storage=postgres_url, max_studies=5000, root="more")
    (said,) = caplog.messages
    assert "5,000 studies" in said
    assert "max_connections" in said


def test_a_user_has_so_many_studies_at_a_time(queue: JobQueue) -> None:
    few = User("ann", "submit", max_studies=2)
    jobs = [queue.submit(few, DIGITS, name=name) for name in ("one", "two")]
    queue.repository.start_job(jobs[0].id)
    with pytest.raises(TooManyStudiesError, match="2 of your studies wait or run, and 2 are"):
        queue.submit(few, DIGITS, name="three")
    assert queue.submit(few, DIGITS, name="two") == jobs[1], "it is there already"
    queue.submit(BOB, DIGITS, name="three")
    queue.repository.end_job(jobs[0].id, "done", 0)
    more = {**DIGITS, "trials": 9}
    assert queue.submit(few, more, name="one").state == "queued"
    with pytest.raises(TooManyStudiesError):
        queue.submit(few, DIGITS, name="four")


def test_the_id_of_a_job_is_never_used_again(
    opened: Callable[..., JobQueue], storage_url: str
) -> None:
    now = [1e9]
    shared = storage_url if storage_url.startswith("postgresql") else None
    queue = opened(clock=lambda: now[0], storage=shared)
    ids = []
    for _ in range(3):
        job = queue.submit(ANN, DIGITS, name="mine")
        queue.cancel("mine", ANN)
        queue.delete(job, lambda: None)
        now[0] += 30 * 3600.0
        ids.append(job.id)
    assert ids == sorted(set(ids))


def test_a_study_that_waits_or_runs_is_not_deleted(queue: JobQueue) -> None:
    job = queue.submit(ANN, DIGITS, name="mine")
    for _ in range(2):
        with pytest.raises(SettingsError, match="cancel it first"):
            queue.delete(job, lambda: pytest.fail("it was deleted"))
        queue.repository.start_job(job.id)


def test_a_driver_does_not_start_beside_one_that_still_ends(tmp_path: Path) -> None:
    queue = JobQueue(ServerOptions(tmp_path / "runs", max_studies=1))
    queue.open(serve=False)
    try:
        job = queue.submit(ANN, DIGITS, name="mine")
        with (queue.options.jobs / f"{job.id}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a driver that was taken for dead
            queue.step()
            held = queue.job("mine")
        assert (held.state, held.pid, held.attempts) == ("queued", None, 0)
        assert held.retry_at is not None
        assert not queue.options.folder("mine").launch_log.exists()
    finally:
        queue.close()


@pytest.mark.postgres
def test_a_shared_database_tells_the_study_of_a_job_by_its_identity(
    opened: Callable[..., JobQueue], postgres_url: str
) -> None:
    """A job that failed before it had a study owns none that others give its name."""
    queue = opened(storage=postgres_url)
    job = queue.submit(BOB, DIGITS, name="one")
    finished(postgres_url, "one", 1)
    study = queue.repository.study("one")
    assert queue.job_of(study, None) is None
    Drivers(queue.options, queue.repository).start(job)
    failed = queue.job("one")
    assert (failed.state, failed.pid) == ("failed", None)
    assert failed.failure is not None
    assert "another study 'one'" in failed.failure.what
    mine = queue.submit(BOB, DIGITS, name="two")
    queue.repository.start_job(mine.id)
    finished(postgres_url, "two", 1)
    note_study(queue.repository, queue.options, queue.job("two"))
    owner = queue.job_of(queue.repository.study("two"), None)
    assert owner is not None
    assert owner.owner == "bob"


def finished(storage: str, name: str, trials: int) -> None:
    """A study with so many finished trials."""
    if storage.startswith("sqlite"):
        Path(storage.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    repository = Repository(open_engine(storage))
    new = NewStudy(name, "m", "a" * 64, {}, "b" * 64, 0, trials, "v1")
    study = repository.create_study(new)
    rows = [NewTrial(n, 0, {}, {}, str(n), str(n), "global") for n in range(trials)]
    made = repository.add_trials(study.id, rows)
    repository.finish_trials(study.id, [Ended(trial, Outcome("failed")) for trial in made])
    repository.close()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"metric": "os:system"}, "code of yours"),
        ({"sampler": "my.module:Sampler"}, "code of yours"),
        ({"passes": ["my:Pass"]}, "code of yours"),
        ({"passes": []}, "code of yours"),
        ({"import": ["antigravity"]}, "code of yours"),
        ({"imports": ["antigravity"]}, "unknown setting 'imports'"),
        ({"model": "/etc/passwd"}, "no model of this server"),
        ({"model": "../../x.onnx"}, "no model of this server"),
        ({"model": "a" * 64 + ".npz"}, "no model of this server"),
        ({"calib": "/etc/passwd"}, "names no upload"),
        ({"eval": "../" + "a" * 64 + ".npz"}, "names no upload"),
        ({"eval": "a" * 64 + ".npz"}, "have not uploaded"),
        ({"space": "/etc/passwd"}, "is a path"),
        ({"preprocess": "/etc/passwd"}, "is a path"),
        ({"hw": "/etc/passwd"}, "is a path"),
        ({"preprocess": {"tokenizer": "/etc/passwd"}}, "does not take 'tokenizer'"),
        ({"preprocess": {"tokenizer": {"file": "tok.json"}}}, "does not take 'tokenizer'"),
        ({"preprocess": {"boxes": "/etc/passwd"}}, "does not take 'boxes'"),
        ({"preprocess": {"masks": "../../tokens.json"}}, "does not take 'masks'"),
        ({"preprocess": {"mean": [["/etc/passwd"]]}}, "'/etc/passwd' is no word or number"),
        ({"preprocess": {"layout": {"../queue.db": 1}}}, "'../queue.db' is no word"),
        ({"out": "/tmp/x"}, "decides out itself"),
        ({"storage": "sqlite:////tmp/x.db"}, "decides storage itself"),
        ({"address": "6.6.6.6:6379"}, "decides address itself"),
        ({"sign": "/root/key"}, "decides sign itself"),
        ({"fresh": True}, "decides fresh itself"),
        ({"trails": 3}, "unknown setting 'trails'"),
        ({"trials": 0}, "trials cannot be 0"),
        ({"sampler": "tpee"}, "sampler cannot be 'tpee'"),
        ({"pool": "inline"}, "no pool 'inline'"),
        ({"workers": 3}, "2 workers at most"),
        ({"worker_cpus": 1000}, "64 cores at most"),
    ],
)
def test_a_server_reads_no_path_and_runs_no_code_of_a_user(
    queue: JobQueue, settings: dict[str, Any], what: str
) -> None:
    with pytest.raises(SettingsError, match=what):
        queue.submit(ANN, {**DIGITS, **settings}, name="mine")
    assert queue.jobs() == []
    assert "antigravity" not in sys.modules


def test_the_upload_of_another_user_cannot_be_submitted(queue: JobQueue) -> None:
    file = queue.uploads.folder / f"{'a' * 64}.npz"
    file.parent.mkdir()
    file.write_bytes(b"x")
    queue.repository.add_upload(queue.server, "bob", Upload("a" * 64, "npz", 1, 0.0))
    settings = {**DIGITS, "eval": f"{'a' * 64}.npz"}
    with pytest.raises(SettingsError, match="have not uploaded"):
        queue.submit(ANN, settings, name="mine")
    queue.submit(BOB, settings, name="mine")
    with pytest.raises(SettingsError, match="needs this file"):
        queue.forget_upload(BOB, "a" * 64)
    queue.cancel("mine", BOB)
    queue.forget_upload(BOB, "a" * 64)
    assert not file.exists()


def test_a_driver_gets_files_of_the_server_in_place_of_uploads_and_contents(
    queue: JobQueue,
) -> None:
    settings = {
        **DIGITS,
        "pool": "ray",
        "preprocess": {"resize": 8, "states": {"/rnn/h": "/rnn/hn"}},
        "hw": "opu_q",
        "space": {"fields": {"calibrate_mode": ["mse"]}},
        "max_drop": "2%",
    }
    job = queue.submit(ANN, settings, name="mine")
    found = launch_settings(job, queue.options).settings
    assert found.out == str(queue.options.root / "studies" / "mine")
    assert (found.pool, found.address, found.workers) == ("ray", "10.0.0.1:6379", 2)
    assert found.preprocess is not None
    assert Path(found.preprocess).read_text() == json.dumps(settings["preprocess"])
    assert found.space == {"fields": {"calibrate_mode": ["mse"]}}
    assert found.hw == "opu_q"
    assert model_name(job) == "digits"
    unnamed = {**job.settings, "model": f"{'a' * 64}.onnx"}
    assert model_name(replace(job, settings=unnamed)) == f"{'a' * 64}.onnx"
    named = {**unnamed, "files": {"model": "My Net.onnx"}}
    assert model_name(replace(job, settings=named)) == "My Net.onnx"


def test_one_server_works_on_a_folder_and_keeps_its_queue(
    opened: Callable[..., JobQueue], tmp_path: Path
) -> None:
    first = opened()
    first.submit(ANN, DIGITS, name="mine")
    with pytest.raises(SettingsError, match="another server"):
        opened()
    first.close()
    assert [job.name for job, _ in opened().jobs()] == ["mine"]


def test_sqlite_holds_several_studies_in_files_of_their_own_only(
    opened: Callable[..., JobQueue], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="one driver"):
        opened(storage=f"sqlite:///{tmp_path / 'all.db'}", max_studies=2)


@pytest.mark.parametrize(
    ("files", "shown"),
    [({"eval": "val.npz"}, "val.npz"), ({}, "the upload of eval")],
)
def test_errors_name_the_file_of_the_user_and_not_the_upload(
    files: dict[str, str], shown: str, queue: JobQueue
) -> None:
    reference = f"{'a' * 64}.npz"
    queue.repository.add_upload(queue.server, "bob", Upload("a" * 64, "npz", 1, 0.0))
    file = queue.uploads.folder / reference
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    job = queue.submit(BOB, {**DIGITS, "eval": reference, "files": files}, name="named")
    settings = launch_settings(job, queue.options).settings
    error = DataError(
        f"{settings.eval} has no label 3", where=f"{settings.eval}: labels", fix=f"see {file}"
    )
    told = failure_of(error, job, queue.options)
    assert told.what == f"{shown} has no label 3"
    assert (told.where, told.fix) == (f"{shown}: labels", f"see {shown}")
    assert queue.submit(BOB, {**DIGITS, "eval": reference}, name="named").id == job.id
