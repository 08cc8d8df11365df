"""Pages of trials, sorted and filtered by the server; one trial with all its details."""

from __future__ import annotations

import pytest


def rows(client, **options):
    return client.get(f"{client.study}/trials", params=options).json()


def test_pages_hold_every_trial_once(client):
    found = [rows(client, offset=offset, limit=7) for offset in range(0, 35, 7)]
    assert [len(page["rows"]) for page in found] == [7, 7, 7, 7, 2]
    assert [row["number"] for page in found for row in page["rows"]] == list(range(30))
    assert {page["matched"] for page in found} == {30}


@pytest.mark.parametrize("column", ["top1", "cpu_s", "params.calibrate_mode", "state", "number"])
def test_both_directions_agree(client, column):
    def value(row):
        kind, _, name = column.partition(".")
        if kind == "params":
            return row["params"][name]
        return row[column] if column in row else (row["score"] or {}).get(column)

    up = [value(row) for row in rows(client, sort=column)["rows"]]
    down = [value(row) for row in rows(client, sort=f"-{column}")["rows"]]
    known = [v for v in up if v is not None]
    assert known == sorted(known)
    assert [v for v in down if v is not None] == sorted(known, reverse=True)
    # What has no value comes last, whichever way.
    assert up[len(known) :] == down[len(known) :] == [None] * (len(up) - len(known))


def test_filters_narrow_the_list(client):
    assert {r["state"] for r in rows(client, state=["failed", "pruned"])["rows"]} == {
        "failed",
        "pruned",
    }
    found = rows(client, find="calibrate_mode=mse complete")
    assert 0 < found["matched"] < 30
    assert all(r["params"]["calibrate_mode"] == "mse" for r in found["rows"])
    assert [r["number"] for r in rows(client, after=27)["rows"]] == [28, 29]
    assert rows(client, stage="other")["matched"] == 0
    assert rows(client, find="ran out of memory")["matched"] == 2


def test_an_unknown_column_names_the_legal_ones(client):
    answer = client.get(f"{client.study}/trials", params={"sort": "topl"})
    assert answer.status_code == 400
    assert "top1" in answer.json()["fix"]


def test_one_trial_tells_what_the_store_knows(client, repository):
    trial = client.get(f"{client.study}/trials/12").json()
    (stored,) = repository.trials_by_number(1, [12])
    assert trial["qconfig"] == dict(stored.qconfig)
    assert trial["error"] == "the worker ran out of memory"
    assert (trial["error_where"], trial["error_fix"]) == ("conv2d_3", "fewer workers")
    (shard,) = trial["shards"]
    assert shard["samples"] == 64
    assert shard["score"]["sqnr_db"] == pytest.approx(20.0)
    assert client.get(f"{client.study}/trials/99").status_code == 404


def test_ranges_of_a_study_elsewhere_say_what_to_do(client):
    answer = client.get(f"{client.study}/trials/3/histograms")
    assert answer.status_code == 404
    assert "qsearch dashboard DIR" in answer.json()["fix"]
