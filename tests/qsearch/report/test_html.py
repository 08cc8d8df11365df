"""The report is one file that loads nothing, and says what the store says."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.report.html import write_report
from qsearch.search.objectives import expected_in, expected_scores
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.stores import fill, new_study, written_runs


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_the_report_is_one_file_that_loads_nothing(tmp_path: Path, capsys) -> None:
    folder = written_runs(tmp_path) / "digits"
    out = tmp_path / "report.html"
    assert run(["report", str(folder), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    text = out.read_text()
    assert not re.search(r"<(link|img|iframe|object)\b|<script[^>]* src=", text)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    told = data_of(out)
    assert [2, "the worker ran out of memory"] in told["failures"]
    assert len(told["columns"]["number"]) == 30


def test_the_best_of_the_report_is_the_stores(tmp_path: Path) -> None:
    folder = written_runs(tmp_path) / "digits"
    told = data_of(write_report(folder, tmp_path / "r.html"))
    best = qsearch.best(folder)
    assert told["study"]["best"]["number"] == best["number"]
    assert told["study"]["best"]["score"]["top1"] == best["top1"]
    assert told["columns"]["number"][told["best_first"][0]] == best["number"]


def test_a_trial_that_was_stopped_early_is_drawn_where_it_is_expected(tmp_path: Path) -> None:
    folder = written_runs(tmp_path) / "digits"
    columns = data_of(write_report(folder, tmp_path / "r.html"))["columns"]
    states = columns["state"]
    pruned = [n for n, at in enumerate(states["at"]) if states["values"][at] == "pruned"]
    assert pruned
    assert sorted(map(int, columns["part"])) == pruned
    assert all(columns["part"][str(place)]["samples"] > 0 for place in pruned)
    rival = {"top1": 0.9875, "sqnr_db": 40.0}
    found = expected_scores(
        {"top1": 0.99, "sqnr_db": 38.0}, {"top1": 0.985, "sqnr_db": 39.0}, rival
    )
    assert expected_in(found) == pytest.approx({"top1": 0.9875, "sqnr_db": 39.0})
    found = expected_scores({"top1": 0.98}, {"top1": 0.985}, rival)
    assert expected_in(found) == pytest.approx({"top1": 0.9825})


def test_the_report_says_whether_the_module_is_proved(tmp_path: Path) -> None:
    folder = written_runs(tmp_path) / "digits"
    out = tmp_path / "r.html"
    assert data_of(write_report(folder, out))["study"]["proof"] is None
    qsearch.quantize("digits").save(folder / "best.qmod")
    assert data_of(write_report(folder, out))["study"]["proof"] == "proved"
    (folder / "best.qmod").write_bytes(b"no module")
    assert data_of(write_report(folder, out))["study"]["proof"] is None


def test_hostile_names_are_data(tmp_path: Path) -> None:
    run_folder = tmp_path / "x"
    run_folder.mkdir()
    repository = Repository(open_engine(f"sqlite:///{run_folder / 'study.db'}"))
    study = repository.create_study(new_study("</script><script>1</script>", 4, "<img src=x>"))
    fill(repository, study, 4)
    repository.close()
    text = write_report(run_folder, tmp_path / "r.html").read_text()
    assert len(re.findall("<script", text)) == 2
    assert "<img" not in text


def test_an_empty_study_has_a_report(tmp_path: Path) -> None:
    run_folder = tmp_path / "x"
    run_folder.mkdir()
    repository = Repository(open_engine(f"sqlite:///{run_folder / 'study.db'}"))
    repository.create_study(new_study("new", 4))
    repository.close()
    assert data_of(write_report(run_folder, tmp_path / "r.html"))["study"]["best"] is None


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys) -> None:
    folder = written_runs(tmp_path) / "digits"
    (tmp_path / "file").write_text("")
    assert run(["report", str(folder), "-o", str(tmp_path / "file" / "r.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report", "nowhere"], ["dashboard", "nowhere"]])
def test_a_folder_that_is_not_there_is_bad_input(words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert "nowhere" in capsys.readouterr().err
