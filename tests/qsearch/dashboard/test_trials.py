"""Pages of trials, sorted and filtered by the server; one trial with all its details."""

from __future__ import annotations

import csv
import gc
from dataclasses import replace

import pytest

from qsearch.dashboard import snapshots
from qsearch.dashboard.app import DashboardOptions
from tests.qsearch.dashboard.server import served
from tests.qsearch.dashboard.stores import new_trial


def rows(client, **options):
    return client.get(f"{client.study}/trials", params=options).json()


def test_pages_hold_every_trial_once(unchanged):
    found = [rows(unchanged, offset=offset, limit=7) for offset in range(0, 35, 7)]
    assert [len(page["rows"]) for page in found] == [7, 7, 7, 7, 2]
    assert [row["number"] for page in found for row in page["rows"]] == list(range(30))
    assert {page["matched"] for page in found} == {30}


@pytest.mark.parametrize("column", ["top1", "cpu_s", "params.calibrate_mode", "state", "number"])
def test_both_directions_agree(unchanged, column):
    def value(row):
        kind, _, name = column.partition(".")
        if kind == "params":
            return row["params"][name]
        return row[column] if column in row else (row["score"] or {}).get(column)

    up = [value(row) for row in rows(unchanged, sort=column)["rows"]]
    down = [value(row) for row in rows(unchanged, sort=f"-{column}")["rows"]]
    known = [v for v in up if v is not None]
    assert known == sorted(known)
    assert [v for v in down if v is not None] == sorted(known, reverse=True)
    # What has no value comes last, whichever way.
    assert up[len(known) :] == down[len(known) :] == [None] * (len(up) - len(known))


@pytest.mark.parametrize(("many", "left_out"), [(30, True), (31, False)])
def test_the_garbage_collector_leaves_many_points_out(folder, monkeypatch, many, left_out):
    """A collection in the middle of a request would walk all of them."""
    monkeypatch.setattr(snapshots, "MANY", many)
    before = gc.get_freeze_count()
    try:
        with served(DashboardOptions(root=folder)) as client:
            assert rows(client)["matched"] == 30
        assert (gc.get_freeze_count() > before) == left_out
    finally:
        gc.unfreeze()


def test_filters_narrow_the_list(unchanged):
    assert {r["state"] for r in rows(unchanged, state=["failed", "pruned"])["rows"]} == {
        "failed",
        "pruned",
    }
    assert [r["number"] for r in rows(unchanged, after=27)["rows"]] == [28, 29]


@pytest.mark.parametrize(
    ("filter", "keeps"),
    [
        ("sqnr_db>30", lambda t: (t["score"] or {}).get("sqnr_db", 0) > 30),
        ("sqnr>30 calibrate_mode=mse", lambda t: (t["score"] or {}).get("sqnr_db", 0) > 30
         and t["params"]["calibrate_mode"] == "mse"),
        ("top1>=93%", lambda t: (t["score"] or {}).get("top1", 0) >= 0.93),
        ("top1 >= 0.93", lambda t: (t["score"] or {}).get("top1", 0) >= 0.93),
        ("hw_traffic<=2k", lambda t: (t["score"] or {}).get("hw_traffic", 1e9) <= 2000),
        ("calibrate_mode=mse,max", lambda t: t["params"]["calibrate_mode"] in ("mse", "max")),
        ("calibrate_mode!=mse", lambda t: t["params"]["calibrate_mode"] != "mse"),
        ("keep_output_wide=true", lambda t: t["params"]["keep_output_wide"]),
        ("state=failed", lambda t: t["state"] == "failed"),
        ("number=3,7", lambda t: t["number"] in (3, 7)),
        ('error~"out of memory"', lambda t: "out of memory" in (t["error"] or "")),
        ("memory", lambda t: "memory" in (t["error"] or "")),
        ("stage=other", lambda t: False),
    ],
)  # fmt: skip
def test_a_filter_compares(unchanged, filter, keeps):
    every = rows(unchanged, limit=500)["rows"]
    found = rows(unchanged, filter=filter, limit=500)
    assert [r["number"] for r in found["rows"]] == [r["number"] for r in every if keeps(r)]


def test_a_percentage_of_a_cost_is_one_of_its_greatest(unchanged):
    every = [r for r in rows(unchanged, limit=500)["rows"] if r["state"] == "complete"]
    most = max(r["score"]["hw_traffic"] for r in every)
    found = rows(unchanged, filter="hw_traffic<=80% state=complete", limit=500)["rows"]
    assert found
    wanted = [r["number"] for r in every if r["score"]["hw_traffic"] <= 0.8 * most]
    assert [r["number"] for r in found] == wanted


@pytest.mark.parametrize("filter", ["sqnr_dbb>35", "top1>abc", "=3", "a=b=c"])
def test_what_a_filter_does_not_understand_is_an_error(unchanged, filter):
    answer = unchanged.get(f"{unchanged.study}/trials", params={"filter": filter})
    assert answer.status_code == 400
    assert "sqnr_db" in answer.json()["fix"] or "number" in answer.json()["fix"]


def test_rows_are_sorted_by_several_columns(unchanged):
    found = rows(unchanged, sort="params.calibrate_mode,-sqnr_db", limit=500)["rows"]
    known = [r for r in found if r["score"]]
    keys = [(r["params"]["calibrate_mode"], -r["score"]["sqnr_db"]) for r in known]
    assert keys == sorted(keys)


def test_what_is_filtered_is_exported_in_its_order(unchanged):
    asked = {"filter": "calibrate_mode=mse state=complete", "sort": "-top1"}
    shown = rows(unchanged, **asked, limit=500)["rows"]
    answer = unchanged.get(f"{unchanged.study}/trials/export.csv", params=asked)
    assert "attachment" in answer.headers["content-disposition"]
    table = list(csv.DictReader(answer.text.splitlines()))
    assert [int(row["number"]) for row in table] == [r["number"] for r in shown]
    assert [float(row["top1"]) for row in table] == [r["score"]["top1"] for r in shown]
    assert {row["params.calibrate_mode"] for row in table} == {"mse"}
    assert unchanged.get(f"{unchanged.study}/trials/export.json", params=asked).json() == shown


def test_a_cell_of_the_export_is_no_formula(folder, repository):
    trial = replace(new_trial(30), params={"=1+1": "@cmd"})
    repository.add_trials(1, [trial])
    with served(DashboardOptions(root=folder)) as client:
        text = client.get(f"{client.study}/trials/export.csv").text
    assert "'@cmd" in text
    assert ",=1+1" not in text


def test_an_unknown_column_names_the_legal_ones(unchanged):
    answer = unchanged.get(f"{unchanged.study}/trials", params={"sort": "topl"})
    assert answer.status_code == 400
    assert "top1" in answer.json()["fix"]


def test_one_trial_tells_what_the_store_knows(unchanged, repository):
    trial = unchanged.get(f"{unchanged.study}/trials/12").json()
    (stored,) = repository.trials_by_number(1, [12])
    assert trial["qconfig"] == dict(stored.qconfig)
    assert trial["error"] == "the worker ran out of memory"
    assert (trial["error_where"], trial["error_fix"]) == ("conv2d_3", "fewer workers")
    (shard,) = trial["shards"]
    assert shard["samples"] == 64
    assert shard["score"]["sqnr_db"] == pytest.approx(20.0)
    assert unchanged.get(f"{unchanged.study}/trials/99").status_code == 404


def test_ranges_of_a_study_elsewhere_say_what_to_do(unchanged):
    answer = unchanged.get(f"{unchanged.study}/trials/3/histograms")
    assert answer.status_code == 404
    assert "qsearch dashboard DIR" in answer.json()["fix"]
