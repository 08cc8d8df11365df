"""The driver with a pool that only pretends: determinism, kills, duplicates, budgets, outcomes."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.errors import CalibrationError, CompilerError, NotFullyIntegralError
from compiler.qtypes.qconfig import QConfig
from qsearch.errors import SearchFailedError
from qsearch.run.progress import TRIALS, Progress
from qsearch.search.context import Budget, Control, StudyContext
from qsearch.search.driver import SPACE_EXHAUSTED, TIMEOUT, TOGETHER_S, Driver
from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import Objective
from qsearch.search.running_trials import RunningTrials
from qsearch.search.sampler import SamplerSpec, StudySampler
from qsearch.search.scoring import Scorer
from qsearch.search.space import UNWEIGHTED, Parameter, Space, config_hash, default_space
from qsearch.search.trial_queue import TrialQueue
from qsearch.search.trying import wish
from qsearch.store.engine import open_engine
from qsearch.store.records import NewStudy, Trial
from qsearch.store.repository import Repository
from workers.errors import LostWorkerError
from workers.messages import Build, DatasetRef, EvaluationRequest, EvaluationResult
from workers.pool.protocol import Finished, Loss

SMALL = Space(
    (
        Parameter("weight_granularity", ("channel", "tensor")),
        Parameter("weight_scale", ("max", "mse")),
        Parameter("calibrate_mode", ("percentile",)),
        Parameter("percentile", (0.99999,)),
    )
)


SECONDS = itertools.count()


def made_up(request: EvaluationRequest) -> EvaluationResult:
    """A score that depends on the module alone: what the weights and ranges are."""
    names = ("weight_scale", "weight_granularity", "global_scale")
    made_of = [request.build.activation_scales, *(request.build.qconfig[name] for name in names)]
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()
    noise = int(digest[:6], 16) / 2**24
    return EvaluationResult(
        sums={"agreement": {"right": 300 - round(30 * noise), "n": 300}},
        samples=len(request.samples),
        collapsed=noise > 0.9,
        outputs_sha256=digest,
        outputs=None,
        compile_cpu_s=0.01,
        run_cpu_s=0.02,
        peak_rss_bytes=2**31,
    )


class FakePool:
    """Answers in an order drawn from ``seed``; ``on_finish`` may raise to play a kill."""

    def __init__(
        self,
        num_workers: int = 2,
        seed: int = 0,
        answer: Callable[[EvaluationRequest], EvaluationResult] = made_up,
        on_finish: Callable[[int], None] | None = None,
    ) -> None:
        self._workers = num_workers
        self._rng = np.random.default_rng(seed)
        self._answer = answer
        self._on_finish = on_finish
        self._queue: list[tuple[Hashable, EvaluationRequest]] = []
        self.ran: list[str] = []

    @property
    def num_workers(self) -> int:
        return self._workers

    @property
    def pending(self) -> int:
        return len(self._queue)

    def wait_ready(self, timeout_s: float) -> int:
        return self._workers

    def put(self, value: Any) -> Any:
        return value

    def submit(
        self, tag: Hashable, request: EvaluationRequest, group: Hashable = None, first: bool = False
    ) -> None:
        self._queue.insert(0 if first else len(self._queue), (tag, request))

    def next_finished(self, timeout_s: float | None = None) -> Finished | None:
        if not self._queue:
            return None
        running = min(self._workers, len(self._queue))
        tag, request = self._queue.pop(int(self._rng.integers(running)))
        if self._on_finish is not None:
            self._on_finish(len(self.ran))
        assert isinstance(request, EvaluationRequest)
        self.ran.append(config_hash(request.build.qconfig))
        try:
            return Finished(tag, self._answer(request))
        except Exception as error:
            return Finished(tag, error=error)

    def take_losses(self) -> list[Loss]:
        return []

    def drop(self, tags: Collection[Hashable]) -> None:
        self._queue = [(tag, request) for tag, request in self._queue if tag not in tags]

    def give_back(self, finished: Iterable[Finished]) -> None:
        assert not list(finished)

    def cancel_all(self) -> None:
        self._queue.clear()

    def close(self) -> None:
        self._queue.clear()


class KilledError(BaseException):
    """Stands for kill -9 in the middle of a study."""


class Scales:
    """Scales that tell configurations apart, or a refusal; ``equal`` modes find the same ones."""

    def __init__(self, refuse: str | None = None, equal: tuple[str, ...] = ()) -> None:
        self.refuse = refuse
        self.equal = equal

    def scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
        if qconfig.calibrate_mode == self.refuse:
            raise CalibrationError("no scale", where="%3", fix="use another mode")
        if qconfig.calibrate_mode == "global_scale":
            return None
        if qconfig.calibrate_mode in self.equal:
            return (1.0, 2.0)
        return (float(len(qconfig.calibrate_mode)), qconfig.percentile)

    def zero_points_matter(self, qconfig: QConfig) -> bool:
        return True


def score_of(sums: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    counts = sums["agreement"]
    return {"top1": None, "agreement": counts["right"] / counts["n"], "sqnr_db": 20.0}


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    repository = Repository(open_engine(f"sqlite:///{tmp_path / 'study.db'}"))
    yield repository
    repository.close()


def search(
    repository: Repository,
    pool: Any,
    *,
    trials: int = 14,
    name: str = "study",
    space: Space | None = None,
    scales: Scales | None = None,
    timeout_s: float | None = None,
    clock: Callable[[], float] | None = None,
    code: str = "v1",
    progress: Progress | None = None,
    keep_failed: bool = False,
    patience: int | str | None = None,
    without_effect: tuple[str, ...] = (),
) -> str | None:
    study = repository.find_study(name) or repository.create_study(
        NewStudy(name, "m.onnx", "a" * 64, {}, "b" * 64, 3, trials, "c" * 16)
    )
    space = space or default_space()
    objective = Objective("agreement")
    budget = Budget(trials, timeout_s, clock or time.monotonic, patience)
    context = StudyContext(repository, study, pool, progress or Progress())
    sampler = StudySampler(
        space,
        QConfig.recommended(weight_rounding="corrected"),
        objective,
        SamplerSpec("auto", 3, batch_size=4, enumerate_all=space.size(trials + 1) <= trials),
    )
    known = KnownTrials(objective)
    queue = TrialQueue(
        context, known, sampler, scales or Scales(), {"code": code}, budget, without_effect
    )
    build = Build(b"", {}, None, "engine")
    whole = EvaluationRequest(build, DatasetRef("npz"), range(300), ("agreement",), ())
    scorer = Scorer(whole, score_of)
    running = RunningTrials(pool, scorer, None)
    driver = Driver(context, queue, running, budget, Control(), keep_failed=keep_failed)
    return driver.run()


def trials_of(repository: Repository, name: str = "study") -> list[Trial]:
    study = repository.find_study(name)
    assert study is not None
    return repository.trials_of(study.id)


def story(repository: Repository, name: str = "study") -> list[Any]:
    """What must not depend on workers, order or kills."""
    return [
        (t.number, t.batch, t.params, t.config_hash, t.state, t.outcome.score)
        for t in trials_of(repository, name)
    ]


def test_a_study_ends_with_the_wanted_number_of_trials(repository: Repository) -> None:
    pool = FakePool()
    assert search(repository, pool) is None
    trials = trials_of(repository)
    assert [t.number for t in trials] == list(range(14))
    assert all(t.finished for t in trials)
    assert QConfig.from_dict(trials[0].qconfig) == QConfig.recommended(weight_rounding="corrected")
    assert len(pool.ran) == len(set(pool.ran)) == 14


@pytest.mark.parametrize(("workers", "order"), [(1, 0), (2, 1), (4, 2), (4, 3)])
def test_workers_and_the_order_of_answers_change_nothing(
    repository: Repository, workers: int, order: int
) -> None:
    search(repository, FakePool(num_workers=3, seed=9), name="one")
    search(repository, FakePool(workers, order), name="other", code="v2")
    assert story(repository, "one") == story(repository, "other")


def test_kills_lose_no_trial_and_repeat_none(repository: Repository) -> None:
    search(repository, FakePool(), name="unbroken")
    ran: list[str] = []
    for kill in range(30):
        interrupt = fake_interrupt(after=1 + kill % 3)
        pool = FakePool(num_workers=3, seed=kill, on_finish=interrupt)
        try:
            search(repository, pool, name="killed", code="v2")
        except KilledError:
            ran += pool.ran
        else:
            ran += pool.ran
            break
    assert story(repository, "killed") == story(repository, "unbroken")
    assert len(ran) == len(set(ran)) == 14


def fake_interrupt(after: int) -> Callable[[int], None]:
    def interrupt(finished: int) -> None:
        if finished >= after:
            raise KilledError

    return interrupt


def test_rows_left_running_by_a_kill_are_run_again_with_their_parameters(
    repository: Repository,
) -> None:
    with pytest.raises(KilledError):
        search(repository, FakePool(on_finish=fake_interrupt(after=2)))
    before = trials_of(repository)
    study = repository.study("study")
    dead = repository.join(study.id, "a driver that was killed", "v1", 2)
    assert len(repository.claim_trials(study.id, dead, 1, below=14).run) == 1
    search(repository, FakePool())
    after = trials_of(repository)[: len(before)]
    assert [(t.number, t.params) for t in before] == [(t.number, t.params) for t in after]
    assert all(t.finished for t in after)


def test_a_longer_study_is_a_shorter_one_continued(repository: Repository) -> None:
    search(repository, FakePool(), trials=6, name="grown")
    search(repository, FakePool(), trials=14, name="grown")
    search(repository, FakePool(), trials=14, name="straight", code="v2")
    assert story(repository, "grown") == story(repository, "straight")


def test_nothing_is_done_when_the_study_has_its_trials(repository: Repository) -> None:
    search(repository, FakePool())
    pool = FakePool()
    assert search(repository, pool, trials=10) is None
    assert pool.ran == []
    assert len(trials_of(repository)) == 14


def test_a_smaller_target_leaves_what_lies_beyond_it_waiting(repository: Repository) -> None:
    with pytest.raises(KilledError):
        search(repository, FakePool(num_workers=1, on_finish=fake_interrupt(after=4)))
    assert search(repository, FakePool(), trials=5) is None
    states = [t.state for t in trials_of(repository)]
    assert "waiting" in states
    assert sum(state != "waiting" for state in states) == 5
    search(repository, FakePool())
    search(repository, FakePool(), name="unbroken", code="v2")
    assert story(repository) == story(repository, "unbroken")


def test_patience_may_be_left_to_the_search(repository: Repository) -> None:
    stopped = search(repository, FakePool(), trials=400, patience="auto")
    assert stopped == "nothing better in 16 trials"
    trials = trials_of(repository)
    assert 16 < len(trials) < 400


def test_a_space_smaller_than_the_budget_is_enumerated_and_ends_the_study(
    repository: Repository,
) -> None:
    pool = FakePool()
    assert search(repository, pool, trials=32, space=SMALL) == SPACE_EXHAUSTED
    assert len(pool.ran) == len(set(pool.ran)) == 4


def test_a_space_of_the_size_of_the_budget_is_enumerated(repository: Repository) -> None:
    assert search(repository, FakePool(), trials=4, space=SMALL) is None
    assert len(trials_of(repository)) == 4


def test_work_known_to_the_storage_is_answered_without_a_worker(repository: Repository) -> None:
    search(repository, FakePool(), name="first")
    pool = FakePool()
    search(repository, pool, name="second")
    assert pool.ran == []
    assert all(t.outcome.from_store for t in trials_of(repository, "second"))
    assert story(repository, "first") == story(repository, "second")
    counts = repository.count_trials(repository.study("second").id)
    assert counts.pruned > 0, "the made-up landscape has configurations that collapse"
    assert counts.from_store == counts.complete == 14 - counts.pruned


def test_configurations_with_equal_ranges_are_one_piece_of_work(repository: Repository) -> None:
    pool = FakePool()
    scales = Scales(equal=("max", "mse", "kl_divergence", "percentile"))
    parameters = default_space(UNWEIGHTED).parameters
    space = Space(tuple(p for p in parameters if p.name != "activation_scheme"))
    search(repository, pool, scales=scales, trials=66, space=space)
    trials = trials_of(repository)
    works = {t.work_hash for t in trials}
    assert len({t.config_hash for t in trials}) == 66
    # 6 ways for the weights; ranges are one set for all modes; 4 global scales.
    assert len(works) == 6 * (1 + 4)
    assert len(pool.ran) == len(works)
    for trial in trials:
        same = next(t for t in trials if t.work_hash == trial.work_hash)
        assert trial.outcome.score == same.outcome.score


def test_no_two_trials_of_a_search_make_one_module(repository: Repository) -> None:
    pool = FakePool()
    scales = Scales(equal=("max", "mse", "kl_divergence", "percentile"))
    search(repository, pool, scales=scales, trials=40, without_effect=("smooth_alpha",))
    trials = trials_of(repository)
    assert len({trial.work_hash for trial in trials}) == len(trials) == 40
    assert not any(trial.outcome.from_store for trial in trials)
    story_of_one = story(repository)
    search(
        repository,
        FakePool(),
        scales=scales,
        trials=24,
        name="twice",
        code="v2",
        without_effect=("smooth_alpha",),
    )
    search(
        repository,
        FakePool(),
        scales=scales,
        trials=40,
        name="twice",
        code="v2",
        without_effect=("smooth_alpha",),
    )
    assert story(repository, "twice") == story_of_one


class Phases(Progress):
    """Remembers in which phase something was said to be done."""

    def __init__(self) -> None:
        self.now = ""
        self.advanced: set[str] = set()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self.now = name

    def advance(self, steps: int = 1, note: str = "") -> None:
        self.advanced.add(self.now)


def test_trials_are_counted_as_trials_after_a_calibration_in_between(
    repository: Repository,
) -> None:
    progress = Phases()
    known = {str(QConfig.recommended(weight_rounding="corrected").calibration_fields())}

    class Measuring(Scales):
        """A calibrator that measures each graph when it is first asked."""

        def scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
            graph = str(qconfig.calibration_fields())
            if qconfig.calibrate_mode != "global_scale" and graph not in known:
                known.add(graph)
                progress.phase("calibration", 2)
            return super().scales_for(qconfig)

    search(repository, FakePool(), scales=Measuring(), trials=24, progress=progress)
    assert len(known) > 1
    assert progress.advanced == {TRIALS}


def test_other_code_is_other_work(repository: Repository) -> None:
    search(repository, FakePool(), name="first")
    pool = FakePool()
    search(repository, pool, name="second", code="v2")
    assert len(pool.ran) == 14


def test_a_collapsed_configuration_is_pruned_with_its_score(repository: Repository) -> None:
    search(repository, FakePool())
    pruned = [t for t in trials_of(repository) if t.state == "pruned"]
    assert pruned
    assert all(t.outcome.collapsed and t.outcome.score is not None for t in pruned)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (LostWorkerError("the worker died 3 times", where="node n", fix="more memory"), "failed"),
        (NotFullyIntegralError("exp stays in float", where="%7"), "infeasible"),
        (ValueError("a bug"), "failed"),
    ],
)
def test_an_error_ends_its_trial_and_not_the_study(
    repository: Repository, error: Exception, state: str
) -> None:
    def answer(request: EvaluationRequest) -> EvaluationResult:
        if request.build.qconfig["smooth_alpha"] == 0.75:
            raise error
        return made_up(request)

    search(repository, FakePool(answer=answer))
    trials = trials_of(repository)
    hit = [t for t in trials if t.qconfig["smooth_alpha"] == 0.75]
    assert hit
    assert all(t.state == state for t in hit)
    assert all(t.outcome.failure is not None for t in hit)
    assert any(t.state == "complete" for t in trials)


def test_the_same_command_tries_failed_trials_again_unless_told_to_keep_them(
    repository: Repository,
) -> None:
    def answer(request: EvaluationRequest) -> EvaluationResult:
        if request.build.qconfig["smooth_alpha"] == 0.75:
            raise LostWorkerError("two workers crashed")
        return made_up(request)

    search(repository, FakePool(answer=answer))
    before = trials_of(repository)
    hit = [t.number for t in before if t.state == "failed"]
    assert hit
    search(repository, FakePool(), keep_failed=True)
    assert trials_of(repository) == before
    pool = FakePool()
    search(repository, pool)
    assert len(pool.ran) == len(hit)
    after = trials_of(repository)
    assert [(t.number, t.params) for t in after] == [(t.number, t.params) for t in before]
    assert all(t.outcome.failure is None and t.state != "failed" for t in after)
    assert [t for t in after if t.number not in hit] == [t for t in before if t.number not in hit]


ASKED = {"weight_scale": "max", "calibrate_mode": "percentile", "percentile": 0.97}


def test_what_somebody_asks_for_is_evaluated_next_and_shifts_no_proposal(
    repository: Repository,
) -> None:
    search(repository, FakePool(), name="quiet", trials=12)

    def ask(finished: int) -> None:
        if finished == 5:
            wish(repository, repository.study("study"), ASKED)

    pool = FakePool(num_workers=1, on_finish=ask)
    repository.create_study(NewStudy("study", "m.onnx", "a" * 64, {}, "b" * 64, 3, 12, "c" * 16))
    search(repository, pool, clock=lambda: next(SECONDS), code="v2")
    trials = trials_of(repository)
    (asked,) = [t for t in trials if t.stage == "tried"]
    assert asked.qconfig["percentile"] == 0.97
    assert asked.state == "complete"
    order = [t.number for t in sorted(trials, key=lambda t: t.finished_at or 0.0)]
    assert pool.ran.index(asked.config_hash) <= 7, order
    others = [(t.batch, t.params, t.outcome.score) for t in trials if t is not asked]
    quiet = [(t.batch, t.params, t.outcome.score) for t in trials_of(repository, "quiet")]
    assert others[: len(quiet)] == quiet


def test_a_finished_study_evaluates_what_was_asked_for_since(repository: Repository) -> None:
    search(repository, FakePool())
    study = repository.study("study")
    wish(repository, study, ASKED)
    wish(repository, study, trials_of(repository)[3].qconfig)
    pool = FakePool()
    assert search(repository, pool) is None
    assert [t.stage for t in trials_of(repository)[14:]] == ["tried"]
    assert len(pool.ran) == 1
    again = FakePool()
    search(repository, again)
    assert again.ran == []


def test_a_wish_that_means_nothing_is_refused_or_told_and_ends_no_search(
    repository: Repository,
) -> None:
    search(repository, FakePool(), trials=2)
    study = repository.study("study")
    with pytest.raises(CompilerError, match="nbit_weigth"):
        wish(repository, study, {"nbit_weigth": 4})
    repository.add_event(study.id, "try", data={"qconfig": {"calibrate_mode": "mine"}})
    search(repository, FakePool(), trials=3)
    assert len(trials_of(repository)) == 3


def test_a_configuration_without_scales_fails_alone(repository: Repository) -> None:
    search(repository, FakePool(), scales=Scales(refuse="mse"), trials=20)
    trials = trials_of(repository)
    refused = [t for t in trials if t.qconfig["calibrate_mode"] == "mse"]
    assert refused
    assert all(t.state == "failed" and t.outcome.attempts == 0 for t in refused)


def test_a_timeout_leaves_the_rest_of_the_batch_waiting(repository: Repository) -> None:
    now = [0.0]

    def answer(request: EvaluationRequest) -> EvaluationResult:
        now[0] += 10
        return made_up(request)

    pool = FakePool(answer=answer)
    stopped = search(repository, pool, timeout_s=55.0, clock=lambda: now[0])
    assert stopped == TIMEOUT
    states = [t.state for t in trials_of(repository)]
    assert states.count("waiting") == 2
    assert "running" not in states
    search(repository, FakePool(), name="unbroken", code="v2")
    search(repository, FakePool())
    assert story(repository) == story(repository, "unbroken")


def test_a_pool_that_forgets_requests_ends_the_search_with_a_message(
    repository: Repository,
) -> None:
    class Forgetful(FakePool):
        def submit(
            self,
            tag: Hashable,
            request: EvaluationRequest,
            group: Hashable = None,
            first: bool = False,
        ) -> None:
            """Loses it."""

    with pytest.raises(SearchFailedError, match="without an answer"):
        search(repository, Forgetful())


def test_nobody_waits_for_a_worker_beyond_the_timeout(repository: Repository) -> None:
    waits: list[float] = []

    class Slow(FakePool):
        def next_finished(self, timeout_s: float | None = None) -> Finished | None:
            waits.append(-1.0 if timeout_s is None else timeout_s)
            return super().next_finished(timeout_s)

    search(repository, Slow(), trials=4, timeout_s=0.125, clock=lambda: 0.0)
    assert waits[0] == 0.125
    assert 0.0 <= min(waits) <= max(waits) <= TOGETHER_S
