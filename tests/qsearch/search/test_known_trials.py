"""A driver knows its trials, in whatever order they end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qsearch.report.measures import Measures, front_numbers, measure_of
from qsearch.report.pareto import front_of
from qsearch.report.view import spark
from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import Objective, comparisons
from qsearch.store.records import Outcome, Trial
from qsearch.store.view_queries import TrialPoint
from tests.each import each


def ended(number: int, top1: float) -> Trial:
    score = {"top1": top1, "agreement": 1.0, "sqnr_db": 1.0}
    return Trial(
        number=number,
        batch=0,
        qconfig={},
        params={},
        config_hash=f"{number:064}",
        work_hash=f"{number:064}",
        id=number,
        study_id=1,
        outcome=Outcome("complete", score, 64),
        created_at=0.0,
        started_at=0.0,
        finished_at=1.0,
    )


@pytest.mark.parametrize(
    ("scores", "best", "last_better"),
    [
        ([(0, 0.5), (1, 0.6), (2, 0.6), (3, 0.4)], 1, 1),
        # Numbers decide, and not the order in which trials end.
        ([(2, 0.6), (1, 0.7), (0, 0.5)], 1, 1),
        ([(0, 0.9), (7, 1.0)], 7, 0),
    ],
)
def test_the_newest_trial_that_was_better_is_known(
    scores: list[tuple[int, float]], best: int, last_better: int
) -> None:
    trials = KnownTrials(Objective("top1"))
    for number, top1 in scores:
        assert trials.note(ended(number, top1))
        assert not trials.note(ended(number, top1)), "it ended before"
    assert trials.finished == len(scores)
    assert trials.best is not None
    assert (trials.best.number, trials.last_better) == (best, last_better)


def test_a_score_that_is_unknown_is_not_above_one_below_zero() -> None:
    trials = KnownTrials(Objective("own:loss"))
    for number, loss in enumerate((-3.0, None)):
        trial = ended(number, 0.5)
        score = {**(trial.outcome.score or {}), "own:loss": loss}
        trials.note(replace(trial, outcome=replace(trial.outcome, score=score)))
    assert trials.most == -3.0


@pytest.mark.parametrize(
    ("objective", "most"), [(Objective("top1"), 20), (Objective("top1", ("size",), 80.0), 200)]
)
def test_few_rivals_stand_for_all_earlier_trials(objective: Objective, most: int) -> None:
    rng = np.random.default_rng(3)
    known = []
    for number in rng.permutation(600):
        score = {"top1": rng.integers(60) / 60, "model_bytes": float(rng.integers(100))}
        trial = replace(ended(int(number), 0.0), batch=int(number) // 4)
        known.append(replace(trial, outcome=Outcome("complete", score, 64)))
    trials = KnownTrials(objective)
    trials.note_all(known)

    def best(rivals: list[Trial], size: float) -> Trial | None:
        return objective.best(
            t
            for t in rivals
            if objective.feasible(t.outcome.score or {})
            and objective.costs(t.outcome.score or {}) <= objective.costs({"model_bytes": size})
        )

    for batch in each(range(0, 151, 10)):
        found = trials.before(batch)
        earlier = [trial for trial in known if trial.batch < batch]
        assert len(found) < most
        assert all(best(found, size) is best(earlier, size) for size in (5.0, 30.0, 75.0, 200.0))


def judged(number: int, right: int, sqnr_db: float) -> Trial:
    """A trial of 480 samples and 100 bytes; the float model has 430 right answers."""
    score = {"top1": right / 480, "sqnr_db": sqnr_db, "model_bytes": 100.0}
    score |= comparisons(score, {"top1": 430 / 480}, 480, None)
    return replace(ended(number, 0.0), outcome=Outcome("complete", score, 480))


def test_a_lucky_trial_that_did_not_win_is_explained() -> None:
    objective = Objective("top1")
    trials = [judged(0, 432, 31.6), judged(1, 430, 35.1)]
    assert objective.best(trials) is trials[1]
    scores = {trial.number: trial.outcome.score or {} for trial in trials}
    luck = (
        "trial 0 has 0.42 points more top-1 than trial 1, which luck explains, and 3.5 dB less SQNR"
    )
    assert objective.explained(1, scores) == luck
    assert objective.explained(0, {0: scores[0]}) is None
    assert Objective("sqnr").explained(1, scores) is None
    # Beside costs, luck is the reason where these are equal.
    both = Objective("top1", ("size",))
    assert both.explained(1, scores) == luck
    smaller = {**scores[1], "model_bytes": 90.0}
    assert both.explained(1, {**scores, 1: smaller}) is None


def test_of_trials_with_equal_objectives_the_best_is_on_the_front() -> None:
    objective = Objective("top1", ("size",))
    trials = [judged(0, 432, 31.6), judged(1, 430, 35.1), judged(2, 431, 33.0)]
    assert objective.best(trials) is trials[1]
    (row,) = front_of(trials, objective)
    assert (row["trial"], row["top1"], row["size"]) == (1, 430 / 480, 100.0)
    measures = Measures(objective, measure_of("top1"), (), measure_of("top1"), None)
    assert front_numbers(measures, [TrialPoint.of(trial) for trial in trials]) == [1]


def test_a_plot_of_the_best_so_far_ends_at_the_winner() -> None:
    objective = Objective("top1")
    trials = [judged(0, 432, 31.6), judged(1, 433, 20.0), judged(2, 429, 35.1)]
    points = [TrialPoint.of(trial) for trial in trials]
    top1 = measure_of("top1")
    measures = Measures(objective, top1, (top1,), top1, None)
    assert [point.number for point in measures.winners(points)] == [0, 2]
    assert measures.best(points).number == 2
    assert spark(measures, points) == [432 / 480, 432 / 480, 429 / 480]


def test_beyond_all_limits_a_trial_is_newly_better_only_than_the_best_before_it() -> None:
    trials = KnownTrials(Objective("top1", max_size=10.0))
    for number, top1 in enumerate((0.9, 0.5, 0.6)):
        trial = ended(number, top1)
        score = {**(trial.outcome.score or {}), "model_bytes": 20.0}
        trials.note(replace(trial, outcome=replace(trial.outcome, score=score)))
    assert trials.last_better == 0
