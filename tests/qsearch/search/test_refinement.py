"""Refinement of the best trials: unseen points, in order of what is expected of them."""

from __future__ import annotations

from collections.abc import Callable

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective, Score
from qsearch.search.space import Params, config_hash, default_space, to_qconfig
from qsearch.search.surrogate import Refinement
from qsearch.store.records import Outcome, Trial, TrialState

START = QConfig.recommended(weight_rounding="corrected")
SPACE = default_space()


def trial(number: int, params: Params, sqnr_db: float | None, **score: float) -> Trial:
    state: TrialState = "failed" if sqnr_db is None else "complete"
    qconfig = to_qconfig(params, START)
    digest = config_hash(qconfig.to_dict())
    found = None if sqnr_db is None else {"sqnr_db": sqnr_db, **score}
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        batch=0,
        params=params,
        qconfig=qconfig.to_dict(),
        config_hash=digest,
        work_hash=digest,
        outcome=Outcome(state=state, score=found),
        created_at=0.0,
        started_at=0.0,
        finished_at=0.0,
    )


def refined(score: Callable[[Params], float], points: list[Params]) -> Refinement:
    refinement = Refinement(SPACE, START, Objective("sqnr"))
    for number, params in enumerate(points):
        refinement.note(trial(number, params, score(params)))
    return refinement


def spread(count: int) -> list[Params]:
    points = list(SPACE.points())
    return [points[(place * 761) % len(points)] for place in range(count)]


def test_nothing_is_proposed_before_a_trial_is_complete() -> None:
    refinement = Refinement(SPACE, START, Objective("sqnr"))
    assert refinement.propose(set(), 1) is None
    refinement.note(trial(0, SPACE.params_of(START), None))
    assert refinement.propose(set(), 1) is None


def test_proposals_are_unseen_and_differ_until_the_next_trial_ends() -> None:
    seen: set[str] = set()
    refinement = refined(lambda p: float(p["weight_scale"] == "mse"), spread(8))
    for slot in range(12):
        point = refinement.propose(seen, slot)
        assert point is not None
        assert point == SPACE.effective(point)
        digest = config_hash(to_qconfig(point, START).to_dict())
        assert digest not in seen
        seen.add(digest)


def test_equal_histories_and_seeds_give_equal_proposals() -> None:
    def score(params: Params) -> float:
        return float(len(str(sorted(params.items()))) % 7)

    one, other = refined(score, spread(10)), refined(score, spread(10))
    assert [one.propose(set(), s) for s in range(3)] == [other.propose(set(), s) for s in range(3)]


def test_two_good_values_seen_apart_are_proposed_together() -> None:
    def score(params: Params) -> float:
        good = {"weight_rounding": "sequential", "calibrate_mode": "mse"}
        return 20.0 + 5.0 * sum(params[name] == value for name, value in good.items())

    apart = [p for p in spread(40) if score(p) < 30.0]
    assert max(map(score, apart)) == 25.0
    point = refined(score, apart).propose(set(), 1)
    assert point is not None
    assert score(point) == 30.0


def test_trials_that_break_a_limit_are_not_refined() -> None:
    refinement = Refinement(SPACE, START, Objective("sqnr"))
    points = spread(24)
    for number, params in enumerate(points):
        tensor = params["weight_granularity"] == "tensor"
        # Greater, but too far from the float model's accuracy.
        refinement.note(
            trial(number, params, 40.0 if tensor else 30.0, keeps_accuracy=1.0 - tensor)
        )
    point = refinement.propose(set(), 1)
    assert point is not None
    assert point["weight_granularity"] == "channel"


def test_a_trial_is_ranked_once_however_many_proposals_follow() -> None:
    ranked: list[int] = []

    class Counting(Objective):
        def rank(self, score: Score, number: int) -> tuple[float, ...]:
            ranked.append(number)
            return super().rank(score, number)

    refinement = Refinement(SPACE, START, Counting("sqnr"))
    points = spread(300)
    for number, params in enumerate(points):
        refinement.note(trial(number, params, 50.0 if number == 7 else number % 11))
    for slot in range(3):
        point = refinement.propose(set(), slot)
        assert point is not None
        # The best of long ago is still what proposals change.
        changed = {name for name in point if point[name] != points[7].get(name)}
        assert len(changed & points[7].keys()) <= 2
    assert ranked == list(range(300))
