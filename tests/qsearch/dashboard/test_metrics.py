"""/metrics and /readyz."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.security import Policy
from qsearch.dashboard.snapshots import FRESH_S
from tests.qsearch.dashboard.server import served


def values(text: str) -> dict[str, float]:
    """Samples by name and labels."""
    return {
        f"{sample.name}{''.join(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_those_of_the_store(client, repository):
    found = values(client.get("/metrics").text)
    trials = repository.trials_of(1)
    for state in ("complete", "waiting"):
        count = sum(trial.state == state for trial in trials)
        assert found.get(f"qsearch_trials{state}", 0) == count
    assert found["qsearch_studiesrunning"] == 1
    seconds = sum(trial.outcome.seconds or 0 for trial in trials)
    assert found["qsearch_trial_seconds_total"] == pytest.approx(seconds)
    driver = repository.join(1, "here", "v", 3)
    assert values(client.get("/metrics").text)["qsearch_workers"] >= 3
    repository.end_drivers([driver])
    (lost,) = repository.trials_of(1, states=["complete"])[:1]
    with repository.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE qs_trial SET lost_workers = 4 WHERE number = ?", (lost.number,)
        )
    assert values(client.get("/metrics").text)["qsearch_workers_lost_total"] == 4


def test_a_database_that_is_gone_is_counted_and_the_rest_told(folder, client):
    (folder / "broken").mkdir()
    (folder / "broken" / "study.db").write_bytes(b"no database")
    found = values(client.get("/metrics").text)
    assert found["qsearch_databases_unread"] == 1
    assert found["qsearch_studiesrunning"] == 1


def test_figures_need_a_token_where_pages_do_and_readiness_none(tmp_path):
    policy = Policy(token="0123456789abcdef")
    with served(DashboardOptions(tmp_path, policy=policy)) as asking:
        assert asking.get("/metrics").status_code == 401
        token = {"Authorization": "Bearer 0123456789abcdef"}
        assert asking.get("/metrics", headers=token).status_code == 200
        assert asking.get("/readyz").json() == {"status": "ready"}
    gone = tmp_path / "study.db"
    gone.write_bytes(b"no database")
    with served(DashboardOptions(tmp_path, policy=policy)) as asking:
        assert asking.get("/readyz").status_code == 503
        assert asking.get("/healthz").status_code == 200


def test_a_trial_that_is_tried_again_is_shown_as_it_ends(client, repository):
    failed = client.get(client.study).json()["counts"]["failed"]
    assert repository.retry_failed(1, 1000) == failed > 0
    time.sleep(2 * FRESH_S)
    counted = client.get(client.study).json()["counts"]
    assert (counted.get("failed", 0), counted["waiting"] >= failed) == (0, True)
