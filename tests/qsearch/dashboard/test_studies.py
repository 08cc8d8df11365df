"""What the API says of studies is what the store holds."""

from __future__ import annotations

import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.snapshots import FRESH_S
from qsearch.report.measures import Measures, measure_of, pareto
from qsearch.report.plots import layers
from qsearch.report.plots.parameters import slices
from qsearch.report.plots.trials import scatter
from qsearch.store.engine import open_engine
from qsearch.store.records import Ended, Failure, LayerFigures, Outcome
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import served
from tests.qsearch.dashboard.stores import new_study, new_trial

SVG = "{http://www.w3.org/2000/svg}"


def test_a_study_is_listed_with_its_progress_and_best(client, repository):
    (study,) = client.get("/api/v1/studies").json()["studies"]
    trials = repository.trials_of(1, states=["complete"])
    best = max(trials, key=lambda t: (t.outcome.score["top1"], t.outcome.score["sqnr_db"]))
    assert (study["name"], study["finished"], study["target_trials"]) == ("digits", 30, 40)
    assert study["counts"]["complete"] == len(trials)
    assert study["best"]["number"] == best.number
    assert study["best"]["value"] == best.outcome.score["top1"]
    assert study["spark"][-1] == study["best"]["value"]


def test_a_best_that_breaks_a_limit_is_told(client, repository):
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


def test_the_history_draws_every_trial_with_a_score(client, repository):
    root = plot(client, "history")
    drawn = {int(g.get("data-trial")) for g in root.iter(f"{SVG}g") if g.get("data-trial")}
    assert drawn == {t.number for t in repository.trials_of(1) if t.outcome.score is not None}


def test_the_scatter_rings_exactly_the_pareto_front(client, repository):
    root = plot(client, "scatter", x="hw_traffic", y="top1")
    ringed = {int(c.get("data-front")) for c in root.iter(f"{SVG}circle") if c.get("data-front")}
    complete = [t for t in repository.trials_of(1) if t.state == "complete"]
    values = {t.number: (t.outcome.score["hw_traffic"], -t.outcome.score["top1"]) for t in complete}
    beaten = {
        n
        for n, (x, y) in values.items()
        if any(a <= x and b <= y and (a, b) != (x, y) for a, b in values.values())
    }
    assert ringed == set(values) - beaten
    front = pareto(repository.points_of(1), measure_of("top1"), measure_of("hw_traffic"))
    assert {number for *_, number in front} == ringed


def test_a_trial_that_breaks_a_limit_is_drawn_but_on_no_front(repository):
    study, points = repository.study("digits"), repository.points_of(1)
    good, cost = measure_of("top1"), measure_of("hw_traffic")
    loser = pareto(points, good, cost)[0][2]
    kept = {True: 1.0, False: 0.0}
    points = [
        replace(p, score={**p.score, "keeps_accuracy": kept[p.number != loser]}) if p.score else p
        for p in points
    ]
    root = ElementTree.fromstring(
        scatter(study, Measures.of(study, points), points, good, cost, 640)
    )
    ringed = {int(c.get("data-front")) for c in root.iter(f"{SVG}circle") if c.get("data-front")}
    assert ringed
    assert loser not in ringed
    assert str(loser) in {g.get("data-trial") for g in root.iter(f"{SVG}g")}


@pytest.mark.parametrize("name", ["importances", "parallel", "layers"])
def test_every_plot_is_well_formed_at_any_width(client, name):
    for width in (240, 640, 1600):
        root = plot(client, name, width=width)
        assert root.get("width") == str(width)
        assert root.get("aria-label")


def test_importances_name_the_searched_parameters(client):
    root = plot(client, "importances")
    named = {r.get("data-parameter") for r in root.iter(f"{SVG}rect")}
    assert named == {"calibrate_mode", "equalize"}


def test_a_slice_shows_each_trial_at_its_value(client, repository):
    root = plot(client, "slice", x="calibrate_mode")
    titles = [t.text for t in root.iter(f"{SVG}title")]
    complete = [t for t in repository.trials_of(1) if t.state == "complete"]
    for trial in complete:
        wanted = f"trial {trial.number}\ncalibrate_mode = {trial.params['calibrate_mode']}"
        assert any(title.startswith(wanted) for title in titles)


def test_values_along_a_slice_keep_only_the_digits_that_tell_them_apart(repository):
    points = [p for p in repository.points_of(1) if p.state == "complete"]
    for values, wanted in (
        ((0.03125, 0.8125, 1.0), {"0.031", "0.81", "1"}),
        ((0.999, 0.9999, None), {"0.999", "0.9999", "None"}),
    ):
        known = [replace(p, params={"p": values[i % 3]}) for i, p in enumerate(points)]
        svg = slices(known, "p", measure_of("top1"), 640)
        shown = {text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}
        assert wanted <= shown


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
    assert Measures.of(study, same).cost.name == "cpu_s"
    asked = replace(study, spec={**study.spec, "minimize": ["hw_traffic"]})
    assert Measures.of(asked, same).cost.name == "hw_traffic"


def test_bars_of_layers_say_what_was_measured():
    figures = [{"bits": 4, "sqnr_db": 9.0 + i, "sqnr_loss_db": 20.0 - i} for i in range(3)]
    found = [LayerFigures("sensitivity", f"conv_{i}", i, each) for i, each in enumerate(figures)]
    assert layers.figures_of(found) == ["sqnr_loss_db", "sqnr_db"]
    svg = layers.bars(found, "sqnr_loss_db", "sensitivity", 640)
    assert "SQNR lost by the outputs (dB), this layer alone at 4 bits" in svg


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
    path = f"{client.study}/plots/history.svg"
    small = client.get(path, headers={"Accept-Encoding": "gzip"})
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert small.text == plain.text
    assert 2 * int(small.headers["content-length"]) < int(plain.headers["content-length"])


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
        until = time.monotonic() + 60
        while not answers and time.monotonic() < until:
            time.sleep(0.01)
        database.touch()
        made = Repository(open_engine(f"sqlite:///{database}"))
        made.create_study(new_study("first", 8))
        made.close()
        until = time.monotonic() + 60
        while answers[-1:] != [(200, 1)] and time.monotonic() < until:
            time.sleep(0.01)
        asking = False
        asker.join()
    assert set(answers) == {(200, 0), (200, 1)}


def plot(client, name: str, width: int = 640, **options: str) -> ElementTree.Element:
    answer = client.get(f"{client.study}/plots/{name}.svg", params={"width": str(width), **options})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("image/svg+xml")
    return ElementTree.fromstring(answer.text)
