"""What the API says of studies is what the store holds."""

from __future__ import annotations

import csv
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.snapshots import FRESH_S, Snapshot
from qsearch.report.measures import Measures, measure_of
from qsearch.report.view import importances_of
from qsearch.store.engine import open_engine
from qsearch.store.records import Ended, Failure, Outcome
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import served
from tests.qsearch.dashboard.stores import new_study, new_trial, written_runs


def test_a_study_is_listed_with_its_progress_and_best(client, repository):
    (study,) = client.get("/api/v1/studies").json()["studies"]
    trials = repository.trials_of(1, states=["complete"])
    best = max(trials, key=lambda t: (t.outcome.score["top1"], t.outcome.score["sqnr_db"]))
    assert (study["name"], study["finished"], study["target_trials"]) == ("digits", 30, 40)
    assert study["counts"]["complete"] == len(trials)
    assert study["best"]["number"] == best.number
    assert study["best"]["value"] == best.outcome.score["top1"]
    assert study["spark"][-1] == study["best"]["value"]


def test_a_best_trial_that_breaks_a_limit_names_the_limit(client, repository):
    assert client.get(client.study).json()["best"]["breaks"] == []
    score = {"top1": 0.99, "model_bytes": 100, "keeps_accuracy": 1.0}
    lost = {"top1": 0.5, "model_bytes": 101, "keeps_accuracy": 0.0}
    study = repository.study("digits")
    free = Measures.of(study, ())
    small = Measures.of(replace(study, spec={**study.spec, "max_size": 100}), ())
    assert free.broken(score) == small.broken(score) == free.broken(None) == []
    assert free.broken(lost) == ["--max-drop"]
    assert small.broken(lost) == ["--max-drop", "--max-size"]
    few = Measures.of(replace(study, spec={**study.spec, "at_most": {"hw_groups": 3}}), ())
    assert few.broken({**score, "hw_groups": 4.0}) == ["--at-most hw_groups"]


def test_new_trials_appear(client, repository):
    before = client.get(client.study).json()
    (queued,) = repository.add_trials(1, [new_trial(30)])
    score = {"top1": 0.999, "agreement": 1.0, "sqnr_db": None}
    repository.finish_trials(1, [Ended(queued, Outcome("complete", score, 64))])
    time.sleep(FRESH_S)
    after = client.get(client.study).json()
    assert after["version"] > before["version"]
    assert after["best"]["number"] == 30
    assert after["best"]["score"]["sqnr_db"] is None


def test_the_version_of_a_study_grows_over_a_restart_of_the_server(folder, repository):
    options = DashboardOptions(root=folder)
    with served(options) as client:
        before = client.get(client.study).json()
    repository.add_trials(1, [new_trial(30)])
    with served(options) as client:
        assert client.get(client.study).json()["version"] > before["version"]


def test_the_rate_leaves_out_the_time_between_two_runs(repository):
    ends = {1: (10.0, 20.0, 30.0), 2: (210.0, 220.0, 230.0, 240.0)}
    made = [(driver, end) for driver, times in ends.items() for end in times]
    points = [
        replace(point, driver_id=driver, started_at=end - 10.0, finished_at=end)
        for point, (driver, end) in zip(repository.points_of(1), made, strict=False)
    ]
    study = repository.study("digits")
    assert Snapshot("k", None, repository, study, None, points).rate_per_min == 6.0
    two = [replace(point, driver_id=point.number % 2) for point in points[3:]]
    assert Snapshot("k", None, repository, study, None, two).rate_per_min == 6.0


def test_failures_are_grouped_by_reason(client):
    found = {row["what"]: row for row in client.get(f"{client.study}/failures").json()}
    assert found["the worker ran out of memory"]["trials"] == [12, 25]
    assert found["the worker ran out of memory"]["state"] == "failed"


def test_layers_and_stages_are_told(client):
    study = client.get(client.study).json()
    assert study["layer_kinds"] == ["sensitivity"]
    assert [(s["name"], s["planned"], s["finished"]) for s in study["stages"]] == [
        ("global", 40, 30)
    ]
    layers = client.get(f"{client.study}/layers?kind=sensitivity").json()
    assert [layer["figures"]["sqnr_db"] for layer in layers] == [30.0, 29.0, 28.0]


def test_points_hold_every_trial_with_its_values(client, repository):
    told = client.get(f"{client.study}/points").json()
    stored = repository.trials_of(1)
    assert told["number"] == [t.number for t in stored]
    states = [told["state"]["values"][at] for at in told["state"]["at"]]
    assert states == [t.state for t in stored]
    top1 = [None if t.outcome.score is None else t.outcome.score["top1"] for t in stored]
    assert told["scores"]["top1"] == pytest.approx(top1, abs=1e-9)
    modes = told["params"]["calibrate_mode"]
    assert [modes["values"][at] for at in modes["at"]] == [
        t.params["calibrate_mode"] for t in stored
    ]


def test_importances_name_the_searched_parameters_and_what_they_leave_out(client, repository):
    told = client.get(f"{client.study}/importances?measure=top1").json()
    assert set(told["importances"]) == {"calibrate_mode", "keep_output_wide"}
    assert told["left_out"] == []
    points = repository.points_of(1)
    some = [replace(p, params={**p.params, "own": 1} if p.number % 2 else p.params) for p in points]
    assert importances_of(measure_of("top1"), some)[1] == ["own"]
    assert client.get(f"{client.study}/importances?measure=nope").status_code == 400


def test_the_front_of_two_objectives_is_told_and_can_be_filtered(folder, repository):
    study = repository.study("digits")
    spec = {**study.spec, "minimize": ["hw_traffic"]}
    with repository.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE qs_study SET spec = ?", (json.dumps(spec),))
    complete = [t for t in repository.trials_of(1) if t.state == "complete"]
    values = {t.number: (t.outcome.score["hw_traffic"], -t.outcome.score["top1"]) for t in complete}
    beaten = {
        n
        for n, (x, y) in values.items()
        if any(a <= x and b <= y and (a, b) != (x, y) for a, b in values.values())
    }
    with served(DashboardOptions(root=folder)) as client:
        told = client.get(client.study).json()
        assert [each["name"] for each in told["objectives"]] == ["top1", "hw_traffic"]
        assert {each["number"] for each in told["front"]} == set(values) - beaten
        rows = client.get(f"{client.study}/trials?filter=front%3Dtrue").json()["rows"]
        assert {row["number"] for row in rows} == set(values) - beaten
        assert all(row["front"] for row in rows)


def test_a_study_that_kept_no_limit_says_which(folder, repository):
    study = repository.study("digits")
    with repository.engine.begin() as connection:
        spec = json.dumps({**study.spec, "at_most": {"hw_traffic": 10}})
        connection.exec_driver_sql("UPDATE qs_study SET spec = ?", (spec,))
    repository.set_study_state(study.id, "complete")
    with served(DashboardOptions(root=folder)) as client:
        told = client.get(client.study).json()
        assert told["verdict"]["state"] == "missed"
        assert told["verdict"]["words"].startswith("no trial within limits: ")
        assert "≤ 10 " in told["verdict"]["words"]


def test_a_stopped_study_without_limits_is_not_called_done(folder, repository):
    repository.set_study_state(repository.study("digits").id, "stopped")
    with served(DashboardOptions(root=folder)) as client:
        assert client.get(client.study).json()["verdict"]["words"] == "stopped; no limits were set"


def test_a_killed_study_tells_the_command_that_resumes_it(folder, repository):
    run = folder / "digits"
    (run / "config.resolved.yaml").write_text("max_drop: '0.01'\n")
    with repository.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE qs_study SET updated_at = 1000")
    with served(DashboardOptions(root=folder)) as client:
        told = client.get(client.study).json()
        assert told["silent"]
        assert told["phase"] == "no driver"
        assert told["resume"] == f"qsearch launch -c {run}/config.resolved.yaml -o {run}"
        assert told["limits"][0]["words"] == "top-1 ≥ 95 %"


def test_a_driver_that_ended_leaves_a_study_that_writes_its_winner(folder, repository):
    study = repository.study("digits")
    driver = repository.join(study.id, "one", "test", 2)
    repository.end_drivers([driver])
    with served(DashboardOptions(root=folder)) as client:
        assert client.get(client.study).json()["phase"] == "writing the winner"


def test_notes_and_tags_are_stored_shown_and_exported(client, repository):
    base = client.study
    for trial, words in ((None, "whole"), (3, "first"), (3, "second")):
        given = {"trial": trial, "note": words, "tags": ["candidate"]}
        assert client.post(f"{base}/notes", json=given).status_code == 204
        told = client.get(base if trial is None else f"{base}/trials/{trial}").json()
        assert told["note"] == words
    found = client.get(f"{base}/trials?filter=tags%3Dcandidate").json()["rows"]
    assert [(row["number"], row["note"]) for row in found] == [(3, "second")]
    table = list(csv.DictReader(client.get(f"{base}/trials/export.csv").text.splitlines()))
    assert (table[3]["note"], table[3]["tags"]) == ("second", "candidate")
    missing = client.post(f"{base}/notes", json={"trial": 999})
    assert missing.status_code == 404


def test_a_study_is_deleted_only_by_its_name(client, folder):
    base = client.study
    assert client.post(f"{base}/delete", json={"name": "other"}).status_code == 400
    assert client.post(f"{base}/delete", json={"name": "digits"}).status_code == 204
    assert client.get("/api/v1/studies").json()["total"] == 0
    assert not (folder / "digits" / "study.db").exists()


def test_studies_are_searched_filtered_and_sorted(tmp_path):
    runs = written_runs(tmp_path)
    for name in ("alpha", "beta"):
        other = Repository(open_engine(f"sqlite:///{runs / 'digits' / 'study.db'}"))
        made = new_study(name, 4, "mobilenet")
        spec = {**made.spec, "for": "cortex-m4"} if name == "beta" else made.spec
        other.create_study(replace(made, spec=spec))
        other.close()
    with served(DashboardOptions(root=runs)) as client:

        def names(**asked):
            told = client.get("/api/v1/studies", params=asked).json()
            return [study["name"] for study in told["studies"]]

        assert names(sort="name") == ["alpha", "beta", "digits"]
        assert names(find="mobile", sort="-name") == ["beta", "alpha"]
        assert names(state="complete") == []
        assert names(device="cortex-m4") == ["beta"]
        assert names(device="qmod", sort="name") == ["alpha", "digits"]
        assert client.get("/api/v1/studies").json()["devices"] == ["cortex-m4", "qmod"]


def test_measures_tell_costs_from_gains(repository):
    study = repository.study("digits")
    measures = Measures.of(study, repository.points_of(study.id))
    assert measures.primary.name == "top1"
    assert measures.cost is not None
    assert measures.cost.name == "hw_traffic"
    assert measures.cost.smaller_is_better
    assert not measures.primary.smaller_is_better


def test_the_cost_that_is_drawn_is_one_that_varies(repository):
    study = repository.study("digits")
    points = repository.points_of(study.id)
    same = [
        replace(p, score=None if p.score is None else {**p.score, "hw_traffic": 7.0})
        for p in points
    ]
    # What a trial took to run is no cost of its module.
    assert Measures.of(study, same).cost is None
    asked = replace(study, spec={**study.spec, "minimize": ["hw_traffic"]})
    assert Measures.of(asked, same).cost.name == "hw_traffic"


def test_reasons_that_differ_in_figures_are_one_without_them(client, repository):
    study = repository.study("digits")
    trials = repository.add_trials(study.id, [new_trial(30), new_trial(31)])
    for trial, other in zip(trials, (2, 7), strict=True):
        told = Failure(f"worse than trial {other} on 756 samples (p = 0.00{other})")
        ended = Outcome("pruned", {"top1": 0.5}, 756, failure=told)
        repository.finish_trials(study.id, [Ended(trial, ended, (), None)])
    time.sleep(FRESH_S)
    found = client.get(f"{client.study}/failures").json()
    (reason,) = [each for each in found if each["what"].startswith("worse than")]
    assert reason["what"] == "worse than trial … on … samples (p = …)"
    assert reason["trials"] == [30, 31]


def test_answers_are_compressed_for_those_who_ask(client):
    path = f"{client.study}/points"
    small = client.get(path, headers={"Accept-Encoding": "gzip"})
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert small.text == plain.text
    assert 2 * int(small.headers["content-length"]) < int(plain.headers["content-length"])


@pytest.mark.slow
def test_a_trial_that_others_overtook_is_shown_when_it_ends(client, repository):
    late, *others = repository.add_trials(1, [new_trial(n) for n in range(30, 34)])
    ended = Outcome("complete", {"top1": 0.5, "agreement": 1.0, "sqnr_db": 1.0}, 64)
    path = f"{client.study}/trials?after=29"
    shown = []
    for some in ([], others, [late], repository.add_trials(1, [new_trial(34)])):
        repository.finish_trials(1, [Ended(trial, ended) for trial in some])
        time.sleep(FRESH_S)
        rows = client.get(path).json()["rows"]
        shown.append([row["state"] for row in rows])
        assert [row["number"] for row in rows] == list(range(30, 30 + len(rows)))
    waiting, done = "waiting", "complete"
    assert shown[0][:4] == [waiting] * 4
    assert shown[1][:4] == [waiting, done, done, done]
    assert shown[2][:4] == [done] * 4
    assert shown[3] == [done] * 5


def test_an_empty_folder_shows_no_study(tmp_path: Path):
    with served(DashboardOptions(root=tmp_path / "nothing")) as client:
        assert client.get("/api/v1/studies").json()["total"] == 0


def test_a_search_that_begins_while_the_page_asks_is_no_error(tmp_path: Path):
    database = tmp_path / "run" / "study.db"
    database.parent.mkdir()
    with served(DashboardOptions(root=tmp_path)) as client:
        answers = []
        asking = True

        def ask() -> None:
            while asking:
                answer = client.get("/api/v1/studies")
                answers.append((answer.status_code, answer.json().get("total")))

        asker = threading.Thread(target=ask)
        asker.start()
        until = time.monotonic() + 240
        while not answers and time.monotonic() < until:
            time.sleep(0.01)
        database.touch()
        made = Repository(open_engine(f"sqlite:///{database}"))
        made.create_study(new_study("first", 8))
        made.close()
        until = time.monotonic() + 240
        while answers[-1:] != [(200, 1)] and time.monotonic() < until:
            time.sleep(0.01)
        asking = False
        asker.join()
    assert set(answers) == {(200, 0), (200, 1)}
