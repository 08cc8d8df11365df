"""status, trials, best, stop and queue with --server: what they print is what the server has."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.security import Policy
from qsearch.errors import SearchError, SettingsError
from qsearch.run.run_folder import RunFolder
from qsearch.server.connection import ServerError
from qsearch.server.queue import JobQueue
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import OPERATOR, Tokens
from qsearch.store.engine import open_engine
from qsearch.store.records import Failure
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import served
from tests.qsearch.quick import QUICK_SPACE


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    qsearch.launch("digits", out=folder / "one", trials=3, pool="inline", space=QUICK_SPACE)
    return folder


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    """A server that starts no study; its queue has a finished one."""
    server = ServerOptions(root, max_studies=0)
    queue = JobQueue(server)
    queue.open(serve=False)
    job = queue.resume(RunFolder(root / "one"), OPERATOR)
    queue.repository.start_job(job.id)
    queue.repository.end_job(job.id, "done", 0)
    queue.close()
    policy = Policy(max_upload_bytes=20_000)
    with served(DashboardOptions(root, None, policy, server)) as http:
        yield str(http.base_url).rstrip("/")


def asked(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert run([str(word) for word in words]) == code
    told = capsys.readouterr()
    return told.out if code == 0 else told.err


def test_status_and_trials_are_those_of_the_server(
    url: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (study,) = json.loads(asked(capsys, "status", "--server", url, "--json"))
    assert (study["study"], study["trials"][0]) == ("one", "3")
    assert "one" in asked(capsys, "status", "one", "--server", url)
    found = json.loads(asked(capsys, "trials", "one", "--server", url, "--format", "json"))
    here = json.loads(asked(capsys, "trials", root / "one", "--format", "json"))
    assert [row["number"] for row in found] == [0, 1, 2]
    assert {row["number"]: row["state"] for row in found} == {
        row["number"]: row["state"] for row in here
    }


def test_best_is_the_winner_of_the_report(
    url: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(RunFolder(root / "one").path.joinpath("report.json").read_text())
    found = json.loads(asked(capsys, "best", "one", "--server", url, "--json"))
    assert found["number"] == report["best"]["trial"]
    assert f"trial {found['number']}" in asked(capsys, "best", "one", "--server", url)


def test_stop_says_that_no_driver_listens_and_unknown_studies_are_told(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "one, 0 driver(s) listening" in asked(capsys, "stop", "one", "--server", url)
    for command in ("trials", "best", "stop"):
        assert "none" in asked(capsys, command, "none", "--server", url, code=2)


def test_an_upload_is_listed_and_forgotten(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    name = qsearch.Client(url).upload(tmp_path / "data.npz")
    listed = json.loads(asked(capsys, "queue", "--uploads", "--server", url, "--json"))
    assert [row["upload"] for row in listed] == [name.partition(".")[0]]
    asked(capsys, "queue", "--forget", name, "--server", url)
    assert json.loads(asked(capsys, "queue", "--uploads", "--server", url, "--json")) == []
    assert asked(capsys, "queue", "--forget", name, "--server", url, code=2)


def test_a_file_that_is_too_large_is_named_with_the_limit_of_the_server(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((200, 1, 28, 28), np.float32))
    many = tmp_path / "many.npz"
    told = asked(capsys, "submit", "digits", "--calib", many, "--server", url, code=2)
    size = many.stat().st_size
    assert f"many.npz: {size} bytes" in told
    assert "larger than 20000 bytes" in told
    assert "--max-upload" in told


def test_a_name_that_no_study_can_have_is_refused_before_anything_is_sent(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x y", "-x", "a/b", "n" * 65):
        told = asked(capsys, "submit", "digits", f"--study={name}", "--server", url, code=2)
        assert f"{name!r} is no name for a study" in told
        assert "--study" in told


def test_a_name_that_is_taken_tells_which_settings_differ(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = qsearch.Client(url)
    client.submit("digits", study="taken", trials=2, metric="top1")
    with pytest.raises(ServerError, match="another study 'taken' of yours, with another metric"):
        client.submit("digits", study="taken", trials=3, metric="sqnr")


def test_a_setting_about_places_is_refused_and_not_left_out(url: str) -> None:
    client = qsearch.Client(url)
    for name in ("out", "storage"):
        with pytest.raises(SettingsError, match=f"{name} is the server's"):
            client.submit("digits", study="places", **{name: "here"})
    assert "places" not in {job["name"] for job in client.queue()}


def test_a_second_token_says_that_the_first_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for told in ("may read; this is shown once", "may read; the earlier token is invalid now"):
        assert run(["token", "ann", str(tmp_path), "--may", "read"]) == 0
        assert told in capsys.readouterr().err


def test_a_submission_that_waits_says_what_runs(
    url: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = qsearch.Client(url)
    client.submit("digits", study="runs", trials=2, seed=4)
    repository = Repository(open_engine(f"sqlite:///{root / 'queue.db'}"))
    (job,) = repository.jobs((root / ".jobs" / "server").read_text(), name="runs")
    words = ("submit", "digits", "--study", "waits", "--seed", 5)
    with (root / ".jobs" / f"{job.id}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its driver
        repository.start_job(job.id)
        told = asked(capsys, *words, "--server", url)
        assert re.search(r"^queued     waits, place \d; running: runs \(operator\)$", told, re.M)
        with pytest.raises(SearchError, match="its driver is just starting"):
            client.trials("runs")
        repository.end_job(job.id, "cancelled", None, Failure("too long"))
    repository.close()
    client.cancel("waits")
    words = ("submit", "digits", "--study", "runs", "--trials", 2, "--seed", 4, "--json")
    assert json.loads(asked(capsys, *words, "--server", url))["state"] == "queued"


def test_why_a_study_failed_is_told_with_where_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ServerOptions(tmp_path, max_studies=0)
    queue = JobQueue(server)
    queue.open(serve=False)
    job = queue.submit(OPERATOR, {"model": "digits", "trials": 2}, name="wrong")
    queue.repository.start_job(job.id)
    why = Failure("the data has no array 'input'", "calib.npz has 'images'", "name the arrays")
    queue.repository.end_job(job.id, "failed", 2, why)
    queue.close()
    with served(DashboardOptions(tmp_path, None, Policy(), server)) as http:
        url = str(http.base_url).rstrip("/")
        told = asked(capsys, "status", "wrong", "--server", url, code=2)
        assert "'wrong' is failed, and has no trials: the data has no array" in told
        assert "\n  where: calib.npz has 'images'\n  fix: name the arrays\n" in told
        assert run(["queue", "wrong", "--server", url]) == 0
        shown = capsys.readouterr()
        assert "failed" in shown.out
        assert "\n  where: calib.npz has 'images'\n  fix: name the arrays\n" in shown.err


def test_where_no_module_can_be_written_is_told_before_anything_is_sent(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = ("--server", "http://127.0.0.1:9", "-o")
    missing = tmp_path / "none" / "m.qmod"
    told = asked(capsys, "submit", "digits", *nowhere, missing, code=2)
    assert "there is no such folder" in told
    assert str(tmp_path / "none") in told
    told = asked(capsys, "submit", "digits", *nowhere, tmp_path, code=2)
    assert f"this is a folder\n  where: {tmp_path}\n" in told
    best = ("best", "one", "--server", url, "-o")
    assert "this is a folder" in asked(capsys, *best, tmp_path, code=2)
    assert "/proc/m.qmod" in asked(capsys, *best, "/proc/m.qmod", code=2)


def test_a_downloaded_module_is_told_by_its_own_path_in_few_words(url: str, tmp_path: Path) -> None:
    found = qsearch.Client(url).download("one", tmp_path / "m.qmod")
    assert (found.path, found.proved) == (tmp_path / "m.qmod", True)
    assert len(repr(found)) < 1000 < len(repr(found.proof)) < 8000
    assert [path.name for path in tmp_path.iterdir()] == ["m.qmod"]


def test_best_of_a_server_tells_the_verdict(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "verdict    met: top-1 ≥" in asked(capsys, "best", "one", "--server", url)


def test_a_name_that_no_study_can_have_is_asked_of_no_server() -> None:
    client = qsearch.Client("http://127.0.0.1:9")
    for ask in (client.job, client.cancel, client.best):
        with pytest.raises(SettingsError, match="'x/y' is no name for a study"):
            ask("x/y")


def test_a_token_with_a_line_break_is_not_shown_and_the_address_of_a_page_is_told(url: str) -> None:
    with pytest.raises(SettingsError, match="the token holds a character") as error:
        qsearch.Client(url, token="qs_secret\nx")
    assert "secret" not in str(error.value)
    assert qsearch.Client(url, token="any\n").me()["name"] == "operator"
    with pytest.raises(ServerError, match="leave out /study/abc"):
        qsearch.Client(f"{url}/study/abc#token=x").me()


def test_a_folder_that_is_a_file_cannot_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert "is no folder" in asked(capsys, "serve", tmp_path / "file", code=2)


def test_a_job_whose_driver_has_only_made_the_file_of_its_store_has_no_study_yet(
    url: str, root: Path
) -> None:
    client = qsearch.Client(url)
    client.submit("digits", study="new", trials=2)
    repository = Repository(open_engine(f"sqlite:///{root / 'queue.db'}"))
    (job,) = repository.jobs((root / ".jobs" / "server").read_text(), name="new")
    repository.start_job(job.id)
    (root / "new").mkdir(exist_ok=True)
    (root / "new" / "study.db").touch()
    assert client.job("new")["study"] is None
    repository.end_job(job.id, "cancelled")
    repository.close()


def test_a_limit_is_changed_without_a_new_token_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that is not given stays, and a limit of a reader makes nobody submit."""
    words = ("token", "ann", tmp_path)
    token = asked(capsys, *words, "--max-studies", 5, "--may", "read").strip()
    told = asked(capsys, *words, "--max-studies", 3, "--keep-token")
    assert told == "ann may read, at most 3 studies at a time; the token is as it was\n"
    users = Tokens(tmp_path / "tokens.json")
    assert users.users()["ann"] == users.find(token)
    another = asked(capsys, *words, "--may", "submit").strip()
    assert users.find(token) is None
    assert str(users.find(another)) == "ann may submit, at most 3 studies at a time"
    told = asked(capsys, *words, "--max-studies", 0, "--keep-token")
    assert told == "ann may submit; the token is as it was\n"
    assert "no user 'bob'" in asked(capsys, "token", "bob", tmp_path, "--keep-token", code=2)
    assert "--max-studies" in asked(capsys, *words, "--max-studies", -1, code=2)
    secret = asked(capsys, "token", "bob", tmp_path, "--max-studies", 2).strip()
    listed = asked(capsys, "token", "list", tmp_path)
    assert [line.split() for line in listed.splitlines()] == [
        ["user", "may", "max_studies"],
        ["ann", "submit", "-"],
        ["bob", "submit", "2"],
    ]
    assert secret not in listed
