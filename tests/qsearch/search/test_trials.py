"""What a driver knows of its trials, in whatever order they end."""

from __future__ import annotations

import pytest

from qsearch.search.objectives import Objective
from qsearch.search.trials import StudyTrials
from qsearch.store.records import Outcome, Trial


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
        # A trial of a lower number that ends late is no newer than one that ended before.
        ([(5, 0.5), (3, 0.7)], 3, 5),
        ([(0, 0.9), (7, 0.1)], 0, 0),
    ],
)
def test_the_newest_trial_that_was_better_is_known(
    scores: list[tuple[int, float]], best: int, last_better: int
) -> None:
    trials = StudyTrials(Objective("top1"))
    for number, top1 in scores:
        assert trials.note(ended(number, top1))
        assert not trials.note(ended(number, top1)), "it ended before"
    assert trials.finished == len(scores)
    assert trials.best is not None
    assert (trials.best.number, trials.last_better) == (best, last_better)
