"""A marked secret in every setting reaches no log, page, API, report, configuration or tracker."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import pytest

from qsearch.cli.main import run
from qsearch.dashboard.app import DashboardOptions
from qsearch.errors import StoreError
from qsearch.masking import masked
from qsearch.process import logging_to
from qsearch.report.html import write_report
from qsearch.run import tracking
from qsearch.settings.launch_settings import Settings
from qsearch.store.engine import open_engine, parse_url
from qsearch.store.records import Trial
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import served
from tests.qsearch.quick import QUICK_SPACE

MARK = "MARKED-SECRET"


def url(scheme: str) -> str:
    """A URL with secrets at both places that URLs have for them."""
    return f"{scheme}://user:{MARK}@host/place?ssl_password={MARK}&api_token={MARK}"


@pytest.mark.parametrize(
    "text",
    [
        url("postgresql"),
        f"mlflow:{url('http')}",
        f"--storage={url('postgresql+psycopg')}",
        f"s3://KEY:{MARK}/{MARK}@bucket",
        f"postgresql://user:{MARK} with spaces {MARK}@host",
        f"cannot reach {url('s3')}, nor {url('http')}: no answer",
    ],
)
def test_a_password_or_token_of_a_url_is_hidden(text: str) -> None:
    assert MARK not in masked(text)
    assert "***" in masked(text)


def test_every_setting_that_is_text_is_masked_where_settings_are_told() -> None:
    kinds = get_type_hints(Settings)
    asked = [name for name, kind in kinds.items() if "str" in str(kind) and name != "model_config"]
    assert {"storage", "artifacts", "track", "address", "measure", "calib"} <= set(asked)
    for name in asked:
        value: Any = url("http")
        if "tuple" in str(kinds[name]):
            value = (value,) if name not in ("at_most", "dim") else ((value, 1),)
        told = Settings.model_construct(**{**dict(Settings()), name: value}).to_dict()
        assert MARK not in json.dumps(told), name


class Recorded:
    """A tracker that keeps all that it is given."""

    told: ClassVar[list[str]] = []

    def __init__(self, uri: str | None, facts: tracking.RunFacts) -> None:
        assert uri is not None
        assert MARK in uri, "the tracker itself needs the password"
        self.told.append(repr(facts))

    def __call__(self, trial: Trial) -> None:
        raise RuntimeError(f"cannot reach {url('http')}")

    def end(self, state: str, files: Sequence[Path]) -> None:
        """Nothing."""


def test_no_sink_of_a_search_tells_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tracking._KINDS, "mlflow", Recorded)  # type: ignore[index]
    out = tmp_path / "run"
    storage = f"sqlite:///{tmp_path / 'all.db'}?api_token={MARK}"
    words = {
        "--model": "digits",
        "--out": str(out),
        "--trials": "1",
        "--pool": "inline",
        "--storage": storage,
        "--artifacts": f"memory://user:{MARK}@kept",
        "--track": f"mlflow:{url('http')}",
    }
    command = ["launch", *(word for pair in words.items() for word in pair), "-v"]
    monkeypatch.setattr(sys, "argv", ["qsearch", *command])
    monkeypatch.setenv("QSEARCH_SPACE", str(tmp_path / "space.json"))
    (tmp_path / "space.json").write_text(json.dumps(QUICK_SPACE))
    assert run(command) == 0
    told = capsys.readouterr()
    repository = Repository(open_engine(storage))
    (study,) = repository.studies()
    repository.set_study_state(study.id, "stopped", f"no answer of {url('s3')}")
    repository.add_event(study.id, "requeued", data={"error": f"cannot reach {url('s3')}"})
    repository.close()
    write_report(out, tmp_path / "page.html", storage=storage)
    sinks = {
        path.name: path.read_text("utf-8")
        for path in out.iterdir()
        if path.is_file() and path.suffix in (".json", ".yaml", ".log")
    }
    assert {"report.json", "config.resolved.yaml", "run.log"} <= sinks.keys()
    sinks |= {"page": (tmp_path / "page.html").read_text("utf-8"), "tracker": str(Recorded.told)}
    sinks |= {"stdout": told.out, "stderr": told.err}
    with served(DashboardOptions(tmp_path / "none", storage)) as http:
        (one,) = http.get("/api/v1/studies").json()["studies"]
        for place in ("", "/events", "/trials", "/trials/0", "/failures", "/points"):
            sinks[f"API{place}"] = http.get(f"/api/v1/studies/{one['key']}{place}").text
        sinks["list"] = http.get("/api/v1/studies").text
    assert "digits" in sinks["tracker"]
    assert shlex.quote("--storage") in sinks["tracker"]
    assert {name for name, text in sinks.items() if MARK in text} == set()


def test_logs_and_errors_of_commands_hide_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(0, tmp_path / "run.log"):
        try:
            raise RuntimeError(url("http"))
        except RuntimeError:
            logging.getLogger("qsearch.test").warning("it failed", exc_info=True)
    assert MARK not in (tmp_path / "run.log").read_text() + capsys.readouterr().err
    for flag, value in (("--track", f"none:{url('http')}"), ("--storage", url("mysql"))):
        assert run(["launch", "--model", "digits", "-o", str(tmp_path / "run"), flag, value]) == 2
    assert MARK not in capsys.readouterr().err
    with pytest.raises(StoreError) as refused:
        parse_url(f"{url('postgresql')} \0")
    assert MARK not in str(refused.value)
