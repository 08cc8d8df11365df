"""Trackers by their own clients, offline: interrupted runs and failed trials are there, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.errors import SettingsError
from qsearch.run import tracking
from qsearch.run.tracking import RunFacts, Trackers
from qsearch.store.records import Failure, Outcome
from tests.qsearch.quick import QUICK_SPACE
from tests.qsearch.search.test_optuna_study import trial

FAILED = replace(trial(1), outcome=Outcome("failed", failure=Failure("it crashed")))


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended and one that was interrupted, with a failed trial."""
    place = tmp_path_factory.mktemp("tracked")
    word = f"mlflow:sqlite:///{place / 'mlflow.db'}"
    asked: dict[str, Any] = {"trials": 2, "pool": "inline", "space": QUICK_SPACE}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(tracking, "CLOSE_S", 300.0)
        qsearch.launch("digits", out=place / "run", track=[word], **asked)
        facts = RunFacts("cut", {"seed": "0"}, "qsearch launch", {"code": "v1"}, place)
        trackers = Trackers([word], facts)
        trackers.trial(FAILED)
        trackers.end("interrupted", [place / "run" / "best.qmod"])
    return place


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients start slowly on a machine that is busy."""
    monkeypatch.setattr(tracking, "CLOSE_S", 300.0)


def test_mlflow_has_runs_with_their_trials_command_versions_and_files(tracked: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tracked / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("qsearch").experiment_id])
    runs = {r.info.run_name: r for r in found if "mlflow.parentRunId" not in r.data.tags}
    assert {name: r.info.status for name, r in runs.items()} == {"run": "FINISHED", "cut": "KILLED"}
    assert {"command", "version.code"} <= set(runs["run"].data.tags)
    assert runs["run"].data.params["trials"] == "2"
    files = {file.path for file in client.list_artifacts(runs["run"].info.run_id)}
    assert {"best.qmod", "qconfig.json", "report.json"} <= files
    parents = [r.data.tags.get("mlflow.parentRunId") for r in found]
    assert parents.count(runs["run"].info.run_id) == 2
    (failed,) = [r for r in found if r.data.tags.get("state") == "failed"]
    assert (failed.info.status, failed.data.tags["error"]) == ("FAILED", "it crashed")
    scored = [r for r in found if r.data.tags.get("state") == "complete"]
    assert all({"top1", "seconds"} <= set(r.data.metrics) for r in scored)


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    facts = RunFacts("cut", {"seed": "0"}, "qsearch launch", {"code": "v1"}, tmp_path)
    file = tmp_path / "best.qmod"
    file.write_bytes(b"module")
    trackers = Trackers(["wandb:offline"], facts)
    trackers.trial(FAILED)
    trackers.end("interrupted", [file])
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = kept.read_bytes()
    for told in (b"it crashed", b"interrupted", b"qsearch launch", b"best.qmod"):
        assert told in content, told


def test_a_tracker_that_is_gone_ends_no_search(tmp_path: Path, caplog: Any) -> None:
    nowhere = "mlflow:sqlite:////proc/nowhere/mlflow.db"
    trackers = Trackers([nowhere], RunFacts("cut", {}, "qsearch", {}, tmp_path))
    trackers.trial(FAILED)
    trackers.end("end")
    assert f"--track {nowhere}" in caplog.text


def test_what_is_no_tracker_or_not_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", "--model", "digits", "--track", "neptune"]) == 2
    assert "mlflow" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(SettingsError, match="wandb is not installed"):
        Trackers(["wandb"], RunFacts("s", {}, "", {}, tmp_path))
