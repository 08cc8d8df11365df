"""NSGA-II of a search: what Optuna's proposes, after any number of trials."""

from __future__ import annotations

import hashlib
from itertools import islice

import pytest
from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial, TrialState

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective
from qsearch.search.optuna_study import (
    GENERATION,
    POPULATION,
    Generations,
    distributions_of,
    frozen_trial,
    new_study,
    quiet_optuna,
)
from qsearch.search.sampler import SamplerSpec, StudySampler
from qsearch.search.space import Params, default_space
from qsearch.store.records import Outcome, Trial
from qsearch.store.records import TrialState as StoredState

SPACE = default_space()
DISTRIBUTIONS = distributions_of(SPACE)


def ended(number: int, params: Params) -> Trial:
    """A trial with any score; every seventh failed, every eleventh is infeasible."""
    chance = hashlib.sha256(str(number).encode()).digest()
    states: dict[int, StoredState] = {number % 7: "failed", number % 11: "infeasible"}
    state = states.get(3, "complete")
    score = {"sqnr_db": float(chance[0] % 16), "model_bytes": float(chance[1] % 16)}
    return Trial(
        number=number,
        batch=number // 4,
        params=params,
        qconfig={},
        config_hash=str(number),
        work_hash=str(number),
        id=number,
        study_id=1,
        outcome=Outcome(state, score=None if state == "failed" else score),
        created_at=1.0,
        started_at=2.0,
        finished_at=3.0,
    )


def some_trials(count: int) -> list[Trial]:
    points = islice(SPACE.points(), 0, 31 * count, 31)
    return [ended(number, params) for number, params in enumerate(points)]


def of_optuna(trials: list[FrozenTrial], objective: Objective, seed: int) -> list[Params]:
    """What Optuna's sampler proposes with all trials in its study."""
    study = new_study(objective)
    complete = 0
    for trial in trials:
        trial.system_attrs[GENERATION] = complete // POPULATION
        complete += trial.state == TrialState.COMPLETE
        study.add_trial(trial)
    study.sampler = NSGAIISampler(seed=seed, population_size=POPULATION)
    return [SPACE.suggest(study.ask()) for _ in range(6)]


@pytest.mark.parametrize("count", [0, 5, 30, 56, 150])
@pytest.mark.parametrize(
    "objective",
    [Objective("sqnr"), Objective("sqnr", ("size",)), Objective("sqnr", ("size",), 8.0)],
    ids=["one", "two", "limit"],
)
def test_proposals_are_those_of_optuna_with_all_trials_in_its_study(
    objective: Objective, count: int
) -> None:
    trials = [frozen_trial(t, DISTRIBUTIONS, objective) for t in some_trials(count)]
    with quiet_optuna():
        study = new_study(objective)
        generations = Generations(study)
        for trial in trials:
            generations.note(trial)
        study.sampler = generations.sampler(7)
        ours = [SPACE.suggest(study.ask()) for _ in range(6)]
        theirs = of_optuna(trials, objective, 7)
    assert ours == theirs
    assert len({str(params) for params in ours}) > 1


def test_twelve_thousand_trials_are_not_too_many() -> None:
    sampler = StudySampler(
        SPACE,
        QConfig.recommended(weight_rounding="corrected"),
        Objective("sqnr"),
        SamplerSpec("nsga2", 5, batch_size=4),
    )
    points = [*SPACE.points()]
    sampler.add_history(ended(n, points[n % len(points)]) for n in range(15_600))
    assert len(sampler.propose(3900)) == 4
