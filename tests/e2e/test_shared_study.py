"""Two commands on one PostgreSQL study, one of them killed; and a search stopped from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from qsearch.errors import StoreError
from qsearch.store.engine import open_reader
from qsearch.store.repository import Repository
from tests.e2e.conftest import TIMEOUT_S, TRIALS


@pytest.mark.slow
@pytest.mark.postgres
def test_two_commands_share_a_study_and_one_takes_over_what_a_killed_one_left(
    launch: Callable[..., Any], postgres_url: str, unbroken: Any
) -> None:
    options = ("--trials", str(TRIALS), "--pool", "process", "--workers", "1")
    shared = ("--storage", postgres_url, "--study", "digits", "--batch", "4")
    one, two = (launch(name, *options, *shared) for name in ("one", "two"))
    first, second = one.start(), two.start()
    repository = Repository(open_reader_when_there(postgres_url, second))
    while second.poll() is None and first.poll() is None:
        study = repository.find_study("digits")
        if study is not None and repository.count_trials(study.id).finished >= 3:
            first.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    first.communicate(timeout=TIMEOUT_S)
    _, err = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, err
    study = repository.study("digits")
    trials = repository.trials_of(study.id)
    assert [t.number for t in trials] == list(range(TRIALS))
    assert {t.state for t in trials} <= {"complete", "pruned"}
    told = [(t.number, t.params, t.outcome.score, t.outcome.outputs_sha256) for t in trials]
    assert told == [
        (t.number, t.params, t.outcome.score, t.outcome.outputs_sha256) for t in unbroken.trials()
    ]
    ours, theirs = (folder / "best.qmod" for folder in (two.folder, unbroken.folder))
    assert ours.read_bytes() == theirs.read_bytes()
    repository.close()


def open_reader_when_there(url: str, process: subprocess.Popen[str]) -> Any:
    """An engine, as soon as a driver has made the tables."""
    while True:
        try:
            return open_reader(url)
        except StoreError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)


@pytest.mark.slow
def test_qsearch_stop_ends_a_search_that_runs_elsewhere(launch: Callable[..., Any]) -> None:
    search = launch("digits", "--trials", "400", "--sampler", "random", "--pool", "inline")
    process = search.start(held_after=3)
    search.wait_until_held(process)
    words = [sys.executable, "-m", "qsearch", "stop", str(search.folder)]
    asked = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "1 driver(s) listening" in asked.stdout
    search.hold.go(process.pid)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert 3 <= search.finished() < 400
    assert (search.folder / "best.qmod").exists()
