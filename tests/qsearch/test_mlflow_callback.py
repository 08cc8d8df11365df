"""The MLflow callback against a stand-in for mlflow: what is logged, and what without it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.errors import SettingsError
from qsearch.mlflow_callback import MlflowCallback

pytestmark = pytest.mark.usefixtures("quick_space")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    module = types.ModuleType("mlflow")
    for name in ("set_tracking_uri", "set_experiment", "log_params", "log_metrics", "set_tags"):
        setattr(module, name, lambda given, name=name: calls.append((name, given)))

    @contextlib.contextmanager
    def start_run(run_name: str) -> Iterator[None]:
        calls.append(("start_run", run_name))
        yield

    module.start_run = start_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def test_every_trial_is_a_run_with_its_parameters_and_scores(
    logged: list[tuple[str, Any]], tmp_path: Path
) -> None:
    result = qsearch.launch(
        "digits",
        trials=2,
        pool="inline",
        out=tmp_path / "run",
        callbacks=[MlflowCallback("digits", "file:///nowhere")],
    )
    assert logged[:2] == [("set_tracking_uri", "file:///nowhere"), ("set_experiment", "digits")]
    assert [given for name, given in logged if name == "start_run"] == ["trial 0", "trial 1"]
    params = [given for name, given in logged if name == "log_params"]
    assert params == [dict(trial.params) for trial in result.trials]
    metrics = [given for name, given in logged if name == "log_metrics"]
    assert all({"top1", "agreement", "seconds"} <= set(given) for given in metrics)


def test_without_mlflow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SettingsError, match="mlflow is not installed"):
        MlflowCallback()
