"""Proposals: equal for equal histories, without duplicates, the whole space when it is small."""

from __future__ import annotations

import hashlib

import pytest

from compiler.qtypes.qconfig import QConfig
from qsearch.choices import SAMPLERS
from qsearch.search.objectives import Objective
from qsearch.search.proposals import Proposal, Proposer, replica
from qsearch.search.samplers import sampler_names
from qsearch.search.space import Parameter, Space, default_space
from qsearch.store.records import Outcome, Trial, TrialState

START = QConfig.recommended()
SMALL = Space(
    (
        Parameter("weight_granularity", ("channel", "tensor")),
        Parameter("calibrate_mode", ("percentile", "max")),
        Parameter("percentile", (0.999, 0.99999), (("calibrate_mode", ("percentile",)),)),
    )
)


def proposer(
    sampler: str = "tpe", space: Space | None = None, every: bool = False, seed: int = 5
) -> Proposer:
    return Proposer(
        space or default_space(),
        START,
        Objective("sqnr"),
        sampler=sampler,
        seed=seed,
        batch_size=4,
        enumerate_all=every,
    )


def ended(proposal: Proposal, number: int, state: TrialState = "complete") -> Trial:
    # Any deterministic landscape will do; the hash makes one without ties.
    noise = int(hashlib.sha256(proposal.config_hash.encode()).hexdigest()[:6], 16) / 2**24
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        batch=number // 4,
        params=proposal.params,
        qconfig=proposal.qconfig.to_dict(),
        config_hash=proposal.config_hash,
        work_hash=proposal.config_hash,
        outcome=Outcome(state=state, score={"agreement": 0.5, "sqnr_db": 20 + 10 * noise}),
        created_at=0.0,
        started_at=0.0,
        finished_at=0.0,
    )


def play(batches: int, restart_every: int | None = None, **options: object) -> list[str]:
    """Config hashes of a study; with restarts the proposer is rebuilt from the trials."""
    current = proposer(**options)  # type: ignore[arg-type]
    trials: list[Trial] = []
    for batch in range(batches):
        if restart_every and batch % restart_every == 0:
            current = proposer(**options)  # type: ignore[arg-type]
            current.add_history(trials)
        proposals = current.propose(batch)
        states: list[TrialState] = ["complete", "pruned", "complete", "failed"]
        new = [ended(p, len(trials) + i, states[i]) for i, p in enumerate(proposals)]
        current.add_history(new)
        trials += new
    return [trial.config_hash for trial in trials]


def test_the_first_proposal_is_the_recommended_configuration() -> None:
    assert proposer().propose(0)[0].qconfig == START


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_restarted_search_proposes_what_an_unbroken_one_does(sampler: str) -> None:
    unbroken = play(8, sampler=sampler)
    assert play(8, restart_every=1, sampler=sampler) == unbroken
    assert play(8, restart_every=3, sampler=sampler) == unbroken


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_nothing_is_proposed_twice_until_the_space_ends(sampler: str) -> None:
    hashes = play(27, sampler=sampler)
    assert len(hashes) == len(set(hashes)) == 108


def test_a_small_space_is_enumerated_from_the_recommended_configuration() -> None:
    hashes = play(3, space=SMALL, every=True)
    assert len(hashes) == len(set(hashes)) == 6
    first = proposer(space=SMALL, every=True).propose(0)[0]
    assert first.qconfig == START


def test_other_seeds_propose_other_trials() -> None:
    one, other = proposer("random", seed=5), proposer("random", seed=6)
    assert one.propose(2) != other.propose(2)


def test_the_names_the_settings_allow_are_those_that_are_registered() -> None:
    assert sampler_names() == tuple(sorted(SAMPLERS))


def test_the_replica_holds_every_finished_trial_with_its_score() -> None:
    proposals = proposer().propose(0)
    states: list[TrialState] = ["complete", "infeasible", "waiting", "failed"]
    trials = [ended(p, i, states[i]) for i, p in enumerate(proposals)]
    study = replica(trials, default_space(), Objective("sqnr"))
    assert [t.user_attrs["number"] for t in study.trials] == [0, 1, 3]
    assert study.best_trial.user_attrs["number"] == 0
    assert study.best_value == (trials[0].outcome.score or {})["sqnr_db"]
