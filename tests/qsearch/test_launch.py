"""launch on both databases, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import qsearch
from qsearch.errors import SettingsError
from tests.each import each

pytestmark = pytest.mark.usefixtures("quick_space", "few_images")


@pytest.mark.slow
def test_a_search_is_stored_and_listed_and_its_work_is_shared(
    storage_url: str, tmp_path: Path
) -> None:
    options = {"trials": 3, "pool": "inline", "storage": storage_url}
    one = qsearch.launch("digits", out=tmp_path / "one", **options)
    two = qsearch.launch("digits", out=tmp_path / "two", **options)
    assert two.summary["trials"]["from_store"] == 3
    assert [t.outcome.score for t in one.trials] == [t.outcome.score for t in two.trials]
    assert "<td>study</td><td>one (3 complete" in one._repr_html_()
    rows = qsearch.status(None, storage=storage_url)
    assert [(row["study"], row["state"], row["trials"]) for row in rows] == [
        ("one", "complete", "3/3"),
        ("two", "complete", "3/3"),
    ]
    assert len(qsearch.trials(None, storage=storage_url, study="two")) == 3
    with pytest.raises(SettingsError, match="2 studies"):
        qsearch.trials(None, storage=storage_url)


def test_a_password_of_the_storage_is_written_nowhere(postgres_url: str, tmp_path: Path) -> None:
    url = postgres_url.replace("postgres:@", "postgres:hunter2@")
    out = tmp_path / "run"
    qsearch.launch("digits", trials=1, pool="inline", storage=url, out=out)
    for path in each(path for path in out.rglob("*") if path.is_file()):
        assert b"hunter2" not in path.read_bytes(), path


def test_a_timeout_ends_the_search_early_with_what_there_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = qsearch.launch("digits", trials=2, pool="inline", out=out)
    assert first.summary["stopped"] is None
    late = qsearch.launch("digits", trials=100, pool="inline", out=out, timeout=0.001)
    assert late.summary["stopped"] == "timeout"
    assert late.summary["trials"]["complete"] >= 2
    assert late.summary["best"] is not None


def test_launch_leaves_the_loggers_of_the_caller_alone(tmp_path: Path) -> None:
    import logging

    before = list(logging.getLogger("qsearch").handlers)
    qsearch.launch("digits", trials=1, pool="inline", out=tmp_path / "run")
    assert logging.getLogger("qsearch").handlers == before
    assert logging.getLogger("qsearch").propagate
    assert "trial 0 complete" in (tmp_path / "run" / "run.log").read_text()


def test_a_search_without_a_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model was given"):
        qsearch.launch(None, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_search_for_size_without_a_budget_ends_by_itself_and_says_why(tmp_path: Path) -> None:
    """The smallest budget of bits is bracketed; what luck explains may be lost."""
    space = {"fields": {"weight_scale": ["mse", "max"]}, "layers": {"nbit_weight": [2, 4, 6, 8]}}
    asked: dict[str, Any] = {"pool": "inline", "minimize": "size", "space": space}
    found = qsearch.launch("digits", out=tmp_path / "run", **asked)
    assert "bracketed" in found.summary["stopped"]
    assert len(found.trials) < 32
    config = yaml.safe_load((tmp_path / "run" / "config.resolved.yaml").read_text())
    assert (config["patience"], config["max_drop"]) == ("auto", "0.0625")
