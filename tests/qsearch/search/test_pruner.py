"""The paired test: its error rate, what it compares with, and that a seed decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from qsearch.search.objectives import Objective
from qsearch.search.pruner import LOOKS, SignFlipPruner, losses, worse_by_sign_flips
from qsearch.search.scoring import costs_of
from qsearch.store.records import Outcome, Shard, Trial
from workers.messages import EvaluationResult

PARTS = 32
ALPHA = 0.05


def part(noise: float, right: float = 30.0, size: float = 100.0) -> EvaluationResult:
    return EvaluationResult(
        sums={
            "sqnr": {"signal": 100.0, "noise": noise},
            "top1": {"right": right, "total": 32.0},
            "agreement": {"right": right, "total": 32.0},
        },
        samples=32,
        collapsed=False,
        outputs_sha256="0" * 64,
        outputs=None,
        compile_cpu_s=0.0,
        run_cpu_s=0.0,
        peak_rss_bytes=0,
        cost={"model_bytes": size, "bit_operations": 1.0},
    )


def trial(number: int, batch: int, sqnr_db: float = 20.0, size: float = 100.0) -> Trial:
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        batch=batch,
        params={},
        qconfig={},
        config_hash=str(number),
        work_hash=str(number),
        outcome=Outcome("complete", score={"sqnr_db": sqnr_db, "model_bytes": size}),
        created_at=0.0,
        started_at=0.0,
        finished_at=0.0,
    )


class Known:
    """Trials with the noise of their parts."""

    def __init__(self, *held: tuple[Trial, Sequence[float]]) -> None:
        self._held = {one.number: (one, noises) for one, noises in held}

    def before(self, batch: int) -> Sequence[Trial]:
        return [one for one, _ in self._held.values() if one.batch < batch]

    def shards(self, trial: Trial) -> Sequence[Shard]:
        noises = self._held[trial.number][1]
        return [Shard(n, len(noises), 32, part(v).sums, 0.0) for n, v in enumerate(noises)]


def stop(known: Known, objective: Objective | None = None, alpha: float = ALPHA) -> SignFlipPruner:
    return SignFlipPruner(
        objective or Objective("sqnr"), known, known.shards, alpha, PARTS, 7, costs_of
    )


def stopped_after(
    test: SignFlipPruner, noises: Sequence[float], size: float = 100.0, stage: str = "global"
) -> int | None:
    parts = [part(noise, size=size) for noise in noises]
    newcomer = replace(trial(9, batch=2), stage=stage)
    for seen in range(1, len(parts)):
        if test.reason_to_prune(newcomer, parts[:seen]) is not None:
            return seen
    return None


def test_what_is_clearly_worse_is_stopped_at_the_first_look() -> None:
    rng = np.random.default_rng(1)
    incumbent = rng.uniform(1, 2, PARTS)
    test = stop(Known((trial(0, 0), incumbent)))
    assert stopped_after(test, incumbent + 0.5) == LOOKS[0]
    assert stopped_after(test, incumbent - 0.5) is None


def test_a_trial_equal_to_the_best_is_stopped_no_more_often_than_alpha() -> None:
    rng = np.random.default_rng(2)
    runs, stops = 400, 0
    for _ in range(runs):
        both = rng.lognormal(size=(2, PARTS))
        stops += stopped_after(stop(Known((trial(0, 0), both[0]))), both[1]) is not None
    # Three standard deviations above what alpha allows.
    assert stops <= runs * ALPHA + 3 * (runs * ALPHA * (1 - ALPHA)) ** 0.5


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_a_better_trial_is_stopped_no_more_often_than_alpha(
    shared: float,
) -> None:
    rng = np.random.default_rng(4)
    runs, stops = 0, 0
    for _ in range(300):
        # Samples with large errors hurt both; who is better on all of them is known afterwards.
        common = rng.lognormal(sigma=1.0, size=PARTS)
        incumbent, newcomer = rng.lognormal(sigma=0.8, size=(2, PARTS)) * common**shared
        if newcomer.sum() < incumbent.sum():
            runs += 1
            stops += stopped_after(stop(Known((trial(0, 0), incumbent))), newcomer) is not None
    assert runs > 100
    assert stops <= runs * ALPHA


def test_only_earlier_batches_are_compared_with() -> None:
    worse = np.full(PARTS, 2.0) + np.arange(PARTS) / 100
    test = stop(Known((trial(8, 2), np.ones(PARTS))))
    assert stopped_after(test, worse) is None


def test_a_trial_that_costs_less_than_every_better_one_is_never_stopped() -> None:
    objective = Objective("sqnr", ("size",))
    test = stop(Known((trial(0, 0, size=100.0), np.ones(PARTS))), objective)
    worse = np.full(PARTS, 2.0) + np.arange(PARTS) / 100
    assert stopped_after(test, worse, size=99.0) is None
    assert stopped_after(test, worse, size=100.0) == LOOKS[0]


def test_what_leaves_bytes_to_bits_is_not_stopped_where_bytes_have_a_limit() -> None:
    test = stop(Known((trial(0, 0, size=180.0), np.ones(PARTS))), Objective("sqnr", max_size=200.0))
    worse = np.full(PARTS, 2.0) + np.arange(PARTS) / 100
    assert stopped_after(test, worse, size=170.0) is None
    assert stopped_after(test, worse, size=180.0) == LOOKS[0]
    assert stopped_after(test, worse, size=170.0, stage="layers") == LOOKS[0]


def test_a_trial_that_breaks_a_limit_stops_no_other_trial() -> None:
    big = trial(0, 0, size=500.0)
    test = stop(Known((big, np.ones(PARTS))), Objective("sqnr", max_size=200.0))
    worse = np.full(PARTS, 2.0) + np.arange(PARTS) / 100
    assert stopped_after(test, worse) is None


def test_alpha_zero_and_trials_without_parts_stop_nothing() -> None:
    worse = np.full(PARTS, 2.0) + np.arange(PARTS) / 100
    assert stopped_after(stop(Known((trial(0, 0), np.ones(PARTS))), alpha=0.0), worse) is None
    assert stopped_after(stop(Known((trial(0, 0), []))), worse) is None


def test_outputs_that_are_not_finite_are_worse_than_any() -> None:
    assert worse_by_sign_flips(np.array([1.0, np.inf, 1.0]), 0) == 0.0


def test_six_losing_parts_have_the_p_value_of_six_coins() -> None:
    assert worse_by_sign_flips(np.arange(1.0, 7.0), 0) == pytest.approx(1 / 64)
    assert worse_by_sign_flips(-np.arange(1.0, 7.0), 0) == 1.0
    assert worse_by_sign_flips(np.zeros(6), 0) == 1.0


def test_drawn_patterns_depend_on_the_seed_alone() -> None:
    values = np.random.default_rng(3).normal(0.3, 1, 24)
    assert worse_by_sign_flips(values, 5) == worse_by_sign_flips(values, 5)
    assert worse_by_sign_flips(values, 5) == pytest.approx(worse_by_sign_flips(values, 6), abs=0.05)


def test_the_loss_of_an_accuracy_counts_wrong_answers() -> None:
    sums = [part(1.0, right=30.0).sums, part(1.0, right=31.0).sums]
    found = losses("top1", sums)
    assert found is not None
    assert found.tolist() == [2.0, 1.0]
    assert losses("agreement", sums) is not None
    assert losses("hw_traffic", sums) is None
    assert losses("sqnr", []) is None


def test_a_trial_whose_metric_has_no_parts_goes_on() -> None:
    test = stop(Known((trial(0, 0), np.ones(PARTS))), Objective("hw_traffic"))
    assert test.reason_to_prune(replace(trial(9, 2)), [part(9.0)] * LOOKS[0]) is None
