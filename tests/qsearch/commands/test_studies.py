"""Which study is meant: told, found in the working directory or in runs, or asked back for."""

from __future__ import annotations

from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.errors import SettingsError, StoreError
from qsearch.run.run_folder import find_studies, find_study
from qsearch.store.engine import open_engine
from qsearch.store.records import NewStudy
from qsearch.store.repository import Repository
from qsearch.store.view_queries import NOTE
from tests.qsearch.dashboard.stores import written_runs

SHARED = "postgresql://team:***@db/search"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QSEARCH_STORAGE", raising=False)
    return tmp_path


def searched(folder: Path, name: str | None = None) -> Path:
    folder.mkdir(parents=True)
    repository = Repository(open_engine(f"sqlite:///{folder / 'study.db'}"))
    spec = {"metric": "sqnr"}
    new = NewStudy(name or folder.name, "m.onnx", "a" * 64, spec, "b" * 64, 0, 4, "c")
    repository.create_study(new)
    repository.close()
    return folder


def searched_elsewhere(folder: Path, storage: str) -> Path:
    folder.mkdir(parents=True)
    text = f"# model_sha256: {'a' * 64}\nmodel: m.onnx  # flag\nstorage: {storage}\nstudy: one\n"
    (folder / "config.resolved.yaml").write_text(text)
    return folder


def test_the_only_study_of_runs_need_not_be_named(here: Path) -> None:
    searched(here / "runs" / "digits")
    assert find_study().folder == Path("runs/digits")
    assert find_study(Path("runs")).folder == Path("runs/digits")
    assert qsearch.status() == qsearch.status("runs/digits")


def test_inside_a_run_folder_its_study_is_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(searched(here / "runs" / "digits"))
    assert [row["study"] for row in qsearch.status()] == ["digits"]


def test_of_several_one_must_be_named_and_status_shows_all(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        searched(here / "runs" / name)
    with pytest.raises(SettingsError, match="name one: runs/one, runs/two"):
        find_study()
    assert find_study(name="two").folder == Path("runs/two")
    assert [row["folder"] for row in qsearch.status()] == ["runs/one", "runs/two"]
    assert run(["trials", "--study", "one"]) == 0
    assert capsys.readouterr().err == "found in runs/one\n"


def test_a_name_that_is_nearly_right_is_told(here: Path) -> None:
    searched(here / "runs" / "digits")
    with pytest.raises(StoreError, match="did you mean runs/digits"):
        find_study(Path("digts"))
    with pytest.raises(StoreError, match="run `qsearch launch` first"):
        find_study(here / "elsewhere" / "x")


def test_an_empty_folder_names_the_command_that_starts_a_search() -> None:
    with pytest.raises(StoreError, match="name a run folder or --storage"):
        find_studies()
    for command in ("status", "trials", "best", "stop"):
        assert run([command]) == 2


def test_a_database_that_is_no_store_does_not_hide_the_others(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    searched(here / "runs" / "one")
    (here / "runs" / "two").mkdir()
    (here / "runs" / "two" / "study.db").write_bytes(b"hello, this is no database" * 100)
    assert [row["study"] for row in qsearch.status()] == ["one"]
    assert "runs/two" in caplog.text
    with pytest.raises(StoreError):
        qsearch.status("runs/two")


def test_a_run_folder_knows_the_storage_of_its_study(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(here / "team", "one")
    url = f"sqlite:///{here / 'team' / 'study.db'}"
    folder = searched_elsewhere(here / "runs" / "one", url)
    assert [row["study"] for row in qsearch.status(folder)] == ["one"]
    secret = searched_elsewhere(here / "secret", SHARED)
    with pytest.raises(StoreError, match="QSEARCH_STORAGE"):
        find_study(secret)
    monkeypatch.setenv("QSEARCH_STORAGE", url)
    assert find_study(secret).storage == url
    assert find_study(secret).name == "one"
    assert find_study().storage == url


def test_nothing_is_deleted_without_being_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = searched(here / "runs" / "digits")
    assert run(["delete", "--yes"]) == 2
    assert "delete what?" in capsys.readouterr().err
    assert (folder / "study.db").is_file()


def test_notes_of_the_dashboard_are_listed(here: Path) -> None:
    folder = written_runs(here) / "digits"
    repository = Repository(open_engine(f"sqlite:///{folder / 'study.db'}"))
    (study,) = repository.studies()
    for trial, note in ((None, "whole"), (3, "first"), (3, "second")):
        repository.add_event(study.id, NOTE, trial=trial, data={"note": note, "tags": ["a", "b"]})
    repository.close()
    rows = {row["number"]: row for row in qsearch.trials(folder)}
    assert (rows[3]["note"], rows[3]["tags"], rows[2]["note"]) == ("second", "a b", "")
    assert [row["note"] for row in qsearch.status(folder)] == ["whole"]
