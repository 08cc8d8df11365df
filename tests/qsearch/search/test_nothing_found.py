"""The error of a search without a module names every cause and the fix of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qsearch.errors import NoModuleError, SearchFailedError
from qsearch.search.result import nothing_found
from qsearch.store.records import Failure, Outcome, Trial
from tests.qsearch.search.test_optuna_study import trial


def ended(number: int, outcome: Outcome, lost_workers: int = 0) -> Trial:
    return replace(trial(number), outcome=outcome, lost_workers=lost_workers)


COLLAPSED = Outcome("pruned", {"agreement": 0.02, "sqnr_db": 0.4}, collapsed=True)
FLOAT = Outcome(
    "infeasible", failure=Failure("1 operators stay in float", "nn.x (Div_3)", "--allow-float")
)
OVERFLOW = Outcome(
    "failed",
    failure=Failure("nn.dense: |sum| can reach 9e9, more than int32 holds", None, "fewer bits"),
)
LOST = Outcome("failed", failure=Failure("trial 3 lost its worker: killed"))


@pytest.mark.parametrize(
    ("outcome", "lost", "kind", "told", "fix"),
    [
        (COLLAPSED, 0, NoModuleError, "1 lost nearly all accuracy", "--dry-run"),
        (FLOAT, 0, NoModuleError, "1 keep operators in float", "--allow-float"),
        (OVERFLOW, 0, SearchFailedError, "1 ended with an error", "fewer bits"),
        (LOST, 3, SearchFailedError, "1 lost their workers", "--workers"),
    ],
)
def test_each_cause_has_its_words_and_its_fix(
    outcome: Outcome, lost: int, kind: type[SearchFailedError], told: str, fix: str
) -> None:
    error = nothing_found([ended(0, outcome, lost)], "run")
    assert type(error) is kind
    assert error.what == f"none of 1 trials gave a module: {told}"
    assert fix in (error.fix or "")
    assert ("--allow-float" in (error.fix or "")) == (outcome is FLOAT)


def test_several_causes_are_counted_the_most_frequent_first() -> None:
    trials = [ended(0, FLOAT), ended(1, COLLAPSED), ended(2, COLLAPSED)]
    error = nothing_found(trials, "run")
    assert error.what.endswith("2 lost nearly all accuracy, 1 keep operators in float")
    assert "agreement 2.00%" in (error.where or "")
    assert "Div_3" in (error.where or "")


def test_a_search_whose_time_is_over_says_how_long_the_preparation_took() -> None:
    waiting = replace(trial(0), outcome=Outcome("waiting"))
    error = nothing_found([waiting], "run", stopped="timeout", prepared_s=42.2)
    assert "42 s" in error.what
    assert "--timeout" in (error.fix or "")
