"""Latency as a cost: measured for every candidate, part of the front; needs a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

import qsearch
from qsearch.errors import SettingsError
from tests.needs import NEEDS_C

pytestmark = pytest.mark.usefixtures("quick_space")


@pytest.mark.slow
@NEEDS_C
def test_a_search_weighs_the_time_that_modules_take(
    tmp_path: Path, few_digits: Path, few_labelled: Path
) -> None:
    space = {"fields": {"weight_scale": ["max", "mse"], "calibrate_mode": ["mse"]}}
    result = qsearch.launch(
        "digits",
        out=tmp_path / "run",
        calib=few_digits,
        eval=few_labelled,
        space=space,
        trials=2,
        pool="process",
        workers=1,
        metric="sqnr",
        minimize=["latency"],
        at_most={"c_latency": 1000},
    )
    scores = [t.outcome.score or {} for t in result.trials if t.state == "complete"]
    assert scores
    assert all(score["latency_ms"] > 0 for score in scores)
    assert all(score["c_latency_ms"] > 0 for score in scores)
    front = result.summary["front"]
    assert [one["latency"] for one in front] == sorted((o["latency"] for o in front), reverse=True)
    best = result.summary["best"]
    assert best["latency_ms"] == front[0]["latency"]
    assert f"latency {best['latency_ms']:.4g} ms" in result.text()


@pytest.mark.parametrize("cost", ["latency", "c_latency"])
def test_latency_needs_a_compiler(
    cost: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("compiler.targets.c.toolchain.find_compiler", lambda: None)
    monkeypatch.setattr("compiler.targets.engine.library.is_available", lambda: False)
    with pytest.raises(SettingsError, match="there is no C compiler") as refused:
        qsearch.launch("digits", out=tmp_path / "run", metric=cost, pool="inline", trials=2)
    assert "bit_operations" in str(refused.value.fix)
