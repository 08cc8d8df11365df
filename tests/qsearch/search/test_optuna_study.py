"""Stored trials as Optuna's records: every finished one, with its score and its times."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime

import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective
from qsearch.search.optuna_study import distributions_of, frozen_trial, new_study, replica
from qsearch.search.space import config_hash, default_space
from qsearch.store.records import Outcome, Trial
from qsearch.store.records import TrialState as StoredState

SPACE = default_space()
START = QConfig.recommended(weight_rounding="corrected")


def trial(number: int, state: StoredState = "complete", **times: float | None) -> Trial:
    fields = START.to_dict()
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        batch=0,
        params=SPACE.params_of(START),
        qconfig=fields,
        config_hash=config_hash(fields),
        work_hash="w",
        outcome=Outcome(state, {"agreement": 0.5, "sqnr_db": 20.0 - number, "model_bytes": 9.0}),
        **{"created_at": 100.0, "started_at": 200.0, "finished_at": 260.0, **times},  # type: ignore[arg-type]
    )


def test_the_replica_holds_every_finished_trial_with_its_score() -> None:
    states: list[StoredState] = ["complete", "infeasible", "waiting", "failed"]
    trials = [trial(number, state) for number, state in enumerate(states)]
    study = replica(trials, SPACE, Objective("sqnr"))
    assert [t.user_attrs["number"] for t in study.trials] == [0, 1, 3]
    assert [t.state for t in study.trials] == [
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
    ]
    assert study.best_trial.user_attrs["number"] == 0
    assert study.best_value == 20.0


@pytest.mark.parametrize("objective", [Objective("sqnr"), Objective("sqnr", ("size",))])
def test_a_frozen_trial_is_the_one_that_optuna_makes(objective: Objective) -> None:
    known = distributions_of(SPACE)
    ours = frozen_trial(trial(3), known, objective)
    theirs = create_trial(
        state=ours.state,
        values=ours.values,
        params=ours.params,
        distributions=ours.distributions,
        user_attrs=ours.user_attrs,
        system_attrs=ours.system_attrs,
    )
    theirs.datetime_start, theirs.datetime_complete = ours.datetime_start, ours.datetime_complete
    assert ours == theirs


def test_a_copy_is_equal_and_changing_it_changes_nothing_else() -> None:
    study = new_study(Objective("sqnr"))
    first = frozen_trial(trial(0), distributions_of(SPACE), Objective("sqnr"))
    study.add_trial(first)
    taken = study.trials[0]
    assert copy.deepcopy(taken) == taken
    taken.user_attrs["number"] = 7
    taken.params["weight_scale"] = "mse"
    assert study.trials[0].user_attrs["number"] == 0
    assert study.trials[0].params == first.params


def test_times_are_those_of_the_store_even_where_the_clock_jumped_back() -> None:
    known, objective = distributions_of(SPACE), Objective("sqnr")
    frozen = frozen_trial(trial(0), known, objective)
    assert frozen.datetime_start == datetime.fromtimestamp(200.0)
    assert frozen.duration is not None
    assert frozen.duration.total_seconds() == 60.0
    jumped = frozen_trial(trial(0, finished_at=20.0), known, objective)
    assert jumped.duration is not None
    assert jumped.duration.total_seconds() == 0.0
    never_run = replace(trial(0), started_at=None)
    assert frozen_trial(never_run, known, objective).datetime_start == datetime.fromtimestamp(100)


@pytest.mark.parametrize(("limit", "excess"), [(4.5, 1.0), (18.0, -0.5)])
def test_a_limit_that_a_trial_breaks_is_a_constraint(limit: float, excess: float) -> None:
    objective = Objective("sqnr", max_size=limit)
    frozen = frozen_trial(trial(0), distributions_of(SPACE), objective)
    assert frozen.constraints == {"max_size": pytest.approx(excess)}


def test_values_are_what_was_measured_and_the_ranking_has_a_name_of_its_own() -> None:
    scores = [
        {"top1": 482 / 600, "top1_float": 0.81, "top1_step": 0.01, "sqnr_db": 30.0},
        {"top1": 487 / 600, "top1_float": 0.81, "top1_step": 0.01, "sqnr_db": 20.0},
    ]
    objective, trials = Objective("top1"), []
    for number, score in enumerate(scores):
        one = trial(number)
        trials.append(replace(one, outcome=replace(one.outcome, score=score)))
    study = replica(trials, SPACE, objective)
    assert [one.value for one in study.trials] == [482 / 600, 487 / 600]
    assert study.trials_dataframe()["value"].tolist() == [482 / 600, 487 / 600]
    assert study.best_value == 487 / 600
    best = objective.best(trials)
    assert best is not None
    assert best.number == 0
    rankings = [one.user_attrs["ranking"] for one in study.trials]
    assert rankings == [objective.ranking(score) for score in scores]
    assert rankings[0] > rankings[1]


def test_a_cost_as_the_metric_is_minimised_among_modules_that_keep_their_accuracy() -> None:
    trials = []
    for number, (latency, kept) in enumerate([(3.0, 1.0), (2.0, 1.0), (1.0, 0.0)]):
        score = {"latency_ms": latency, "keeps_accuracy": kept, "sqnr_db": 20.0}
        one = trial(number)
        trials.append(replace(one, outcome=replace(one.outcome, score=score)))
    study = replica(trials, SPACE, Objective("latency"))
    assert study.direction == StudyDirection.MINIMIZE
    assert [one.value for one in study.trials] == [3.0, 2.0, 1.0]
    assert study.best_trial.user_attrs["number"] == 1
