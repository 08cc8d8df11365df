"""Several drivers, wishes from outside, and a clock that jumps: nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest

from compiler.qtypes.qconfig import QConfig
from qsearch.run.progress import Progress
from qsearch.search.context import Budget, StudyContext
from qsearch.search.driver import STOPPED, Driver
from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import Objective
from qsearch.search.running_trials import RunningTrials
from qsearch.search.sampler import SamplerSpec, StudySampler
from qsearch.search.scoring import Scorer
from qsearch.search.space import default_space
from qsearch.search.trial_queue import TrialQueue
from qsearch.store.engine import open_engine
from qsearch.store.leases import LeaseMonitor
from qsearch.store.records import NewStudy
from qsearch.store.repository import Repository
from tests.qsearch.search.test_driver import (
    FakePool,
    KilledError,
    Scales,
    fake_interrupt,
    made_up,
    score_of,
    story,
)
from workers.messages import Build, DatasetRef, EvaluationRequest, EvaluationResult

pytestmark = pytest.mark.slow

TRIALS = 16


def driver(
    repository: Repository,
    pool: Any,
    *,
    sampler: str = "auto",
    code: str = "v1",
    name: str = "study",
    watch: LeaseMonitor | None = None,
) -> Driver:
    study = repository.find_study(name) or repository.create_study(
        NewStudy(name, "m.onnx", "a" * 64, {}, "b" * 64, 3, TRIALS, "c" * 16)
    )
    objective = Objective("agreement")
    context = StudyContext(repository, study, pool, Progress())
    proposes = StudySampler(
        default_space(),
        QConfig.recommended(weight_rounding="corrected"),
        objective,
        SamplerSpec(sampler, seed=3, batch_size=4),
    )
    budget = Budget(TRIALS)
    queue = TrialQueue(context, KnownTrials(objective), proposes, Scales(), {"code": code}, budget)
    build = Build(b"", {}, None, "engine")
    whole = EvaluationRequest(build, DatasetRef("npz"), range(300), ("agreement",), ())
    scorer = Scorer(whole, score_of)
    running = RunningTrials(pool, scorer, None)
    return Driver(context, queue, running, budget, leases=watch or LeaseMonitor())


def slowly(request: EvaluationRequest) -> EvaluationResult:
    time.sleep(0.02)
    return made_up(request)


def in_threads(*work: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.mark.postgres
@pytest.mark.parametrize("sampler", ["auto", "random"])
def test_two_drivers_share_a_study_without_a_duplicate(postgres_url: str, sampler: str) -> None:
    both_joined, both_run = threading.Barrier(2), threading.Barrier(2)

    class JoinedByBoth(Repository):
        """Its driver goes on when the other one has joined the study, too."""

        def join(self, study_id: int, name: str, code_version: str, workers: int) -> int:
            driver_id = super().join(study_id, name, code_version, workers)
            both_joined.wait(240)
            return driver_id

    def run_by_both(finished: int) -> None:
        if not finished:
            both_run.wait(240)  # the first trial of each driver runs beside that of the other

    pools = [FakePool(seed=n, on_finish=run_by_both) for n in (0, 1)]
    shared = [JoinedByBoth(open_engine(postgres_url)) for _ in pools]
    first, second = (
        driver(repository, pool, sampler=sampler)
        for repository, pool in zip(shared, pools, strict=True)
    )
    in_threads(first.run, second.run)
    ran = [*pools[0].ran, *pools[1].ran]
    assert len(ran) == len(set(ran)) == TRIALS
    assert first.news.finished_here + second.news.finished_here == TRIALS
    assert min(first.news.finished_here, second.news.finished_here) > 0
    repository = Repository(open_engine(postgres_url))
    driver(repository, FakePool(), sampler=sampler, code="v2", name="alone").run()
    assert story(repository, "study") == story(repository, "alone")
    for opened in (repository, *shared):
        opened.close()


@pytest.mark.postgres
def test_what_a_dead_driver_ran_is_run_by_another_with_the_same_parameters(
    postgres_url: str,
) -> None:
    repository = Repository(open_engine(postgres_url))
    living = driver(repository, FakePool(), watch=LeaseMonitor(lease_s=0.5))
    with pytest.raises(KilledError):
        driver(repository, FakePool(on_finish=fake_interrupt(after=5))).run()
    # A killed process leaves no cleaned-up rows: one more driver, whose heart does not beat.
    dead = repository.join(living.context.study.id, "killed", "v1", 2)
    taken = repository.claim_trials(living.context.study.id, dead, 2, below=TRIALS).run
    assert taken
    assert living.run() is None
    after = {t.number: t for t in repository.trials_of(living.context.study.id)}
    assert len(after) == TRIALS
    assert all(t.finished for t in after.values())
    for trial in taken:
        assert after[trial.number].params == trial.params
        assert after[trial.number].outcome.attempts >= 2
    assert [d.state for d in repository.drivers_of(living.context.study.id)] == ["ended"] * 3
    repository.close()


def test_a_dead_driver_of_another_study_holds_up_no_equal_work(storage_url: str) -> None:
    repository = Repository(open_engine(storage_url))
    killed = driver(repository, FakePool(on_finish=fake_interrupt(after=1)), name="killed")
    with pytest.raises(KilledError):
        killed.run()
    dead = repository.join(killed.context.study.id, "killed", "v1", 2)
    taken = repository.claim_trials(killed.context.study.id, dead, 2, below=TRIALS).run
    other = driver(repository, FakePool(), name="other", watch=LeaseMonitor(lease_s=0.5))
    assert other.run() is None
    works = {trial.work_hash for trial in repository.trials_of(other.context.study.id)}
    assert works & {trial.work_hash for trial in taken}
    assert repository.count_trials(other.context.study.id).finished == TRIALS
    left = repository.trials_by_number(killed.context.study.id, [trial.number for trial in taken])
    assert {trial.state for trial in left} == {"waiting"}
    repository.close()


def test_a_request_to_stop_ends_the_search_with_nothing_running(sqlite_url: str) -> None:
    repository = Repository(open_engine(sqlite_url))
    asked = threading.Event()

    def answer(request: EvaluationRequest) -> EvaluationResult:
        if not asked.is_set():
            asked.set()
            repository.add_command(search.context.study.id, "stop")
        time.sleep(0.3)
        return made_up(request)

    search = driver(repository, FakePool(answer=answer))
    assert search.run() == STOPPED
    trials = repository.trials_of(search.context.study.id)
    assert 0 < sum(t.finished for t in trials) < TRIALS
    assert all(t.finished or t.state == "waiting" for t in trials)
    repository.close()


def test_a_paused_study_waits_until_it_is_told_to_go_on(sqlite_url: str) -> None:
    repository = Repository(open_engine(sqlite_url))
    search = driver(repository, FakePool(answer=slowly))
    study = search.context.study.id
    running = threading.Thread(target=search.run)
    running.start()
    repository.add_command(study, "pause")
    end = time.monotonic() + 240
    while repository.study("study").state != "paused" and running.is_alive():
        assert time.monotonic() < end
        time.sleep(0.02)
    if running.is_alive():  # else it was quicker than the wish
        repository.add_command(study, "resume")
    running.join(240)
    assert repository.count_trials(study).finished == TRIALS
    repository.close()


def test_a_clock_that_jumps_changes_nothing(sqlite_url: str) -> None:
    rng = random.Random(5)
    clock = Repository(open_engine(sqlite_url), clock=lambda: rng.uniform(0, 4e9))
    steady = Repository(open_engine(sqlite_url))
    for kill in range(20):
        pool = FakePool(num_workers=3, seed=kill, on_finish=fake_interrupt(after=3))
        try:
            driver(clock, pool, code="v1").run()
        except KilledError:
            continue
        break
    driver(steady, FakePool(), code="v2", name="steady").run()
    assert story(clock, "study") == story(steady, "steady")
    assert all(
        t.outcome.seconds is None or 0 <= t.outcome.seconds < 60
        for t in clock.trials_of(clock.study("study").id)
    )
    clock.close()
    steady.close()


class CountingPool(FakePool):
    """Knows how many requests it held at most."""

    most = 0

    def submit(
        self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False
    ) -> None:
        super().submit(tag, request, group, first)
        self.most = max(self.most, self.pending)


def test_three_trials_wait_beside_the_one_that_a_worker_runs(sqlite_url: str) -> None:
    repository = Repository(open_engine(sqlite_url))
    pool = CountingPool(num_workers=1)
    driver(repository, pool, sampler="random").run()
    assert pool.most == 4
    repository.close()


@pytest.mark.postgres
def test_a_driver_of_another_study_takes_no_trials_from_the_reserve(postgres_url: str) -> None:
    repository = Repository(open_engine(postgres_url))
    other = driver(repository, FakePool(), name="other")
    repository.join(other.context.study.id, "elsewhere", "v1", 2)
    pool = CountingPool(num_workers=1)
    driver(repository, pool).run()
    assert pool.most == 4
    repository.close()
