"""The dashboard over a PostgreSQL store: the same answers, live, and no password in any of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.snapshots import FRESH_S
from qsearch.store.engine import open_engine
from qsearch.store.records import LayerFigures
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.dashboard.stores import fill, new_study

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
TRIALS = 60


@pytest.fixture
def written(postgres_url: str) -> Iterator[Repository]:
    repository = Repository(open_engine(postgres_url))
    for name in ("first", "second"):
        study = repository.create_study(new_study(name, TRIALS, model=name))
        repository.save_baseline(study.id, {"top1": 0.96, "agreement": 1.0, "sqnr_db": None})
        fill(repository, study, TRIALS)
        repository.save_layers(
            study.id, [LayerFigures("sensitivity", "conv_0", 0, {"sqnr_db": 30.0})]
        )
    yield repository
    repository.close()


@pytest.fixture
def shown(written: Repository, postgres_url: str, tmp_path: Path) -> Iterator[Client]:
    # A role with a password: servers of tests trust who connects, whatever it is.
    url = make_url(postgres_url).set(password="hunter2-secret")
    options = DashboardOptions(
        root=tmp_path / "runs", storage=url.render_as_string(hide_password=False)
    )
    with served(options) as client:
        yield client


def test_every_study_of_the_database_is_listed_with_its_best(shown, written):
    found = shown.get("/api/v1/studies").json()
    assert found["total"] == 2
    for study in found["studies"]:
        trials = written.trials_of(written.study(study["name"]).id, states=["complete"])
        assert study["best"]["value"] == max(t.outcome.score["top1"] for t in trials)
        assert study["finished"] == TRIALS
        assert sum(study["counts"].values()) == TRIALS


def test_trials_are_sorted_filtered_and_paged(shown, written):
    complete = [t for t in written.trials_of(written.study("second").id) if t.state == "complete"]
    key = next(
        s["key"] for s in shown.get("/api/v1/studies").json()["studies"] if s["name"] == "second"
    )
    base = f"/api/v1/studies/{key}"
    pages = [
        shown.get(f"{base}/trials?sort=-top1&state=complete&limit=10&offset={at}").json()["rows"]
        for at in range(0, len(complete), 10)
    ]
    rows = [row for page in pages for row in page]
    values = [row["score"]["top1"] for row in rows]
    assert sorted(row["number"] for row in rows) == sorted(t.number for t in complete)
    assert values == sorted(values, reverse=True)
    found = shown.get(f"{base}/trials?filter=calibrate_mode%3Dmse&limit=500").json()
    assert {row["params"]["calibrate_mode"] for row in found["rows"]} == {"mse"}
    one = shown.get(f"{base}/trials/12").json()
    assert one["error"] == "the worker ran out of memory"
    assert one["shards"]


@pytest.mark.parametrize("name", ["points", "importances", "layers"])
def test_what_plots_are_drawn_from_is_told(shown, name):
    answer = shown.get(f"{shown.study}/{name}")
    assert answer.status_code == 200
    assert answer.json()


def test_what_was_added_since_is_shown(shown, written):
    key = shown.key
    before = shown.get(f"/api/v1/studies/{key}").json()
    study = written.study(before["name"])
    fill(written, study, 5, first=TRIALS)
    time.sleep(FRESH_S)
    after = shown.get(f"/api/v1/studies/{key}").json()
    assert after["finished"] == before["finished"] + 5
    assert after["version"] > before["version"]
    rows = shown.get(f"/api/v1/studies/{key}/trials?after={TRIALS - 1}").json()["rows"]
    assert [row["number"] for row in rows] == list(range(TRIALS, TRIALS + 5))


def test_commands_are_stored(shown, written):
    base = shown.study
    study = written.study(shown.get(base).json()["name"])
    assert shown.post(f"{base}/commands", json={"kind": "pause"}).status_code == 200
    assert [wish.kind for wish in written.commands_of(study.id, 0)] == ["pause"]


def test_no_answer_holds_the_password(shown):
    base = shown.study
    for path in ("/api/v1/studies", base, f"{base}/trials", f"{base}/trials/12", f"{base}/events"):
        assert "hunter2" not in shown.get(path).text
