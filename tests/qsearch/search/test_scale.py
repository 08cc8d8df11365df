"""A server with many studies, workers and users, simulated: nothing lost, nothing twice, and fair.

Counts only: what a trial costs in statements, and what the queue and the shares promise.
"""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_scale import Report, simulate
from workers.pool.ray_cluster import ASK_EVERY_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(24, 10, 120, charge_cpu=False)


def test_no_trial_of_ten_studies_is_lost_or_runs_twice(report: Report) -> None:
    assert (report.trials, report.lost, report.doubled) == (120, 0, 0)


def test_a_trial_costs_few_statements_and_transactions(report: Report) -> None:
    assert report.statements_a_trial <= 11
    assert report.writes_a_trial <= 2


@pytest.mark.postgres
def test_drivers_of_a_shared_database_ask_little_of_each_other(postgres_url: str) -> None:
    """With a worker each, a driver looks around twice a trial: one statement, not four."""
    found = simulate(4, 4, 48, storage=postgres_url, charge_cpu=False, wanted=(1,))
    assert (found.lost, found.doubled) == (0, 0)
    assert found.statements_a_trial <= 10


def test_trials_that_end_together_share_a_transaction() -> None:
    """64 workers end 32 trials a second; none of the workers waits for that."""
    found = simulate(64, 1, 192, charge_cpu=False, wanted=(64,))
    assert (found.lost, found.doubled, found.efficiency) == (0, 0, 1.0)
    assert found.writes_a_trial <= 0.6
    assert found.statements_a_trial <= 4


def test_workers_of_a_shared_cluster_are_kept_busy(report: Report) -> None:
    assert report.most_held == report.workers
    assert report.efficiency >= 0.8


def test_a_new_study_gets_its_share_soon(report: Report) -> None:
    """It asks every two seconds, and the others end the trials that they run: three at most."""
    assert report.below_share_s <= ASK_EVERY_S + 3.0
