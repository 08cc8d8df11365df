"""The queue that pools share: who takes what, and what a death costs."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import LostWorkerError
from workers.pool import queued_pool
from workers.pool.endings import inquest, is_own_fault, oom_kills
from workers.pool.queued_pool import JobQueue
from workers.process import LOG_BYTES, log_tail


def queue_of(**groups: int) -> JobQueue:
    queue = JobQueue(max_attempts=3)
    for group, count in groups.items():
        for part in range(count):
            queue.add((group, part), None, group)
    return queue


def taken(queue: JobQueue, worker: str) -> str:
    job = queue.take(worker)
    return "nothing" if job is None else f"{job.tag[0]}{job.tag[1]}"


def test_a_worker_stays_with_its_group_and_others_begin_others() -> None:
    queue = queue_of(a=3, b=3)
    assert [taken(queue, w) for w in ("one", "two", "one", "two")] == ["a0", "b0", "a1", "b1"]


def test_an_idle_worker_steals_where_most_is_left_but_never_the_last_job() -> None:
    queue = queue_of(a=2, b=4)
    assert [taken(queue, w) for w in ("one", "two")] == ["a0", "b0"]
    assert [taken(queue, "three") for _ in range(3)] == ["b1", "b2", "b3"]
    assert taken(queue, "four") == "nothing"
    assert taken(queue, "one") == "a1"


@pytest.mark.parametrize(("seconds", "stolen"), [(0.1, "nothing"), (1.0, "b2")])
def test_a_worker_prepares_for_another_group_only_where_that_takes_less_than_its_jobs(
    monkeypatch: pytest.MonkeyPatch, seconds: float, stolen: str
) -> None:
    now = 1.0
    monkeypatch.setattr(queued_pool, "time", SimpleNamespace(monotonic=lambda: now))
    queue = queue_of(a=2, b=6)
    for took in (2.0, seconds):  # the first job prepares
        job = queue.take("one")
        assert job is not None
        now += took
        queue.done(job, None, None, "one")
    assert [taken(queue, "two") for _ in range(2)] == ["b0", "b1"]
    assert taken(queue, "one") == stolen


def test_the_job_of_a_dead_worker_is_the_first_of_its_group_again() -> None:
    queue = queue_of(a=2)
    job = queue.take("one")
    assert job is not None
    queue.release("one")
    queue.lost(job, "worker one", "killed", "its last words")
    assert taken(queue, "two") == "a0"
    (loss,) = queue.take_losses()
    assert (loss.tag, loss.why, loss.log) == (("a", 0), "killed", "its last words")
    assert queue.take_losses() == []


def test_faults_are_counted_for_the_whole_group_and_other_deaths_cost_nothing() -> None:
    queue = JobQueue(max_attempts=2)
    for part in (0, 1):
        queue.add(("a", part), None, "a")
    for own_fault in (False, True, True):
        job = queue.take("one")
        assert job is not None
        queue.lost(job, "worker", "killed", own_fault=own_fault)
    ended = queue.next_finished()
    assert ended is not None
    assert isinstance(ended.error, LostWorkerError)
    assert "2 times in all" in str(ended.error)


def test_a_job_rests_longer_each_time_that_its_worker_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(queued_pool, "time", SimpleNamespace(monotonic=lambda: now))
    queue = queue_of(a=1)
    rests = []
    for _ in range(12):
        begin, job = now, queue.take("one")
        while job is None:
            assert len(queue) == 1
            now += queued_pool.REST_S / 2
            job = queue.take("one")
        rests.append(now - begin)
        queue.lost(job, "worker", "killed")
    assert rests[:5] == [0.0, 0.0, 0.25, 0.5, 1.0]
    assert max(rests) == queued_pool.LONGEST_REST_S
    queue.drop([("a", 0)])
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("code", "kills", "own"),
    [
        (-signal.SIGSEGV, 0, True),
        (-signal.SIGABRT, 0, True),
        (-signal.SIGFPE, 0, True),
        (-signal.SIGKILL, 0, False),
        (-signal.SIGKILL, 1, True),
        (-signal.SIGTERM, 1, False),
        (3, 0, True),
    ],
)
def test_a_crash_and_a_lack_of_memory_are_faults_of_the_request(
    code: int, kills: int, own: bool
) -> None:
    assert is_own_fault(code, 7, 7 + kills) is own


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/a/b", "a/b/memory.events"), ("4:memory:/x", "memory/x/memory.oom_control")],
)
def test_the_kernel_says_for_the_group_how_often_memory_was_lacking(
    line: str, file: str, tmp_path: Path
) -> None:
    group = tmp_path / "cgroup"
    group.write_text(f"9:name=systemd:/\n{line}\n")
    there = tmp_path / "groups" / file
    there.parent.mkdir(parents=True)
    there.write_text("low 0\noom 12\noom_kill 5\n")
    assert oom_kills(group, tmp_path / "groups") == 5
    there.rename(tmp_path / "groups" / file.replace("a/b/", "").replace("x/", ""))
    assert oom_kills(group, tmp_path / "groups") == 5
    assert oom_kills(group, tmp_path / "none") == oom_kills(tmp_path / "none")


def test_dropped_jobs_are_not_taken() -> None:
    queue = queue_of(a=3, b=1)
    queue.drop([("a", 0), ("a", 1), ("a", 2)])
    assert (len(queue), taken(queue, "one")) == (1, "b0")


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
)
def test_every_job_is_taken_once_whoever_asks_in_which_order(
    sizes: list[int], asks: list[int]
) -> None:
    queue = queue_of(**{chr(97 + n): size for n, size in enumerate(sizes)})
    found = [job.tag for worker in asks if (job := queue.take(worker)) is not None]
    while len(queue):
        # Whoever holds a group takes what is left of it; one of these workers always can.
        jobs = [job for worker in range(4) if (job := queue.take(worker)) is not None]
        if not jobs:
            jobs = [job for job in [queue.take("fresh")] if job is not None]
        assert jobs
        found += [job.tag for job in jobs]
    assert len(found) == len(set(found)) == sum(sizes)


def test_log_tail_gives_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    assert log_tail(log) is None
    log.write_text("  \n")
    assert log_tail(log) is None
    log.write_text("one line\n")
    assert log_tail(log) == "one line"
    log.write_text("first" + "x" * LOG_BYTES + "last")
    assert log_tail(log) == "x" * (LOG_BYTES - 4) + "last"


def test_a_crash_is_read_once_from_the_file_beside_the_log(tmp_path: Path) -> None:
    log, crash = tmp_path / "0.log", tmp_path / "0.log.crash"
    log.write_text("last words\n")
    crash.write_bytes(b"Fatal Python error: Segmentation fault\n")
    assert inquest(str(log), oom_kills()) == (True, "last words")
    assert not crash.exists()
    assert inquest(str(log), oom_kills()) == (False, "last words")
