"""Memory, flash and instructions of the C as costs: in every score, with limits in k or M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.errors import SettingsError

pytestmark = pytest.mark.usefixtures("quick_space", "few_images")

SPACE = {"fields": {"weight_scale": ["mse"]}, "layers": {"nbit_input": {"conv_1": [8, 16]}}}


def _launch(folder: Path, **options: Any) -> qsearch.SearchResult:
    return qsearch.launch(
        "digits", out=folder, space=SPACE, trials=2, sampler="grid", metric="sqnr", **options
    )


def test_a_limit_of_memory_decides_which_trial_wins(tmp_path: Path) -> None:
    free = _launch(tmp_path / "free", minimize=["ram"], pool="inline")
    rams = {(t.outcome.score or {})["ram_bytes"] for t in free.trials if t.state == "complete"}
    assert len(rams) > 1
    assert free.summary["best"]["ram_bytes"] == max(rams)
    limited = _launch(tmp_path / "limited", at_most=f"ram={min(rams) / 1024}k", pool="inline")
    assert limited.exit_code == 0
    assert limited.summary["best"]["ram_bytes"] == min(rams)


def test_a_limit_of_memory_that_nothing_keeps_ends_with_1_and_names_the_least(
    tmp_path: Path,
) -> None:
    missed = _launch(tmp_path / "run", at_most={"ram": "1k"}, pool="inline")
    least = min((t.outcome.score or {})["ram_bytes"] for t in missed.trials if t.outcome.score)
    assert missed.exit_code == 1
    assert f"the least ram is {least:,.0f} (trial " in missed.text()


@pytest.mark.slow
def test_a_core_adds_its_costs_to_every_trial_and_limits_them(tmp_path: Path) -> None:
    free = _launch(tmp_path / "free", for_="cortex-m4", pool="inline")
    scores = [trial.outcome.score or {} for trial in free.trials]
    for score in scores:
        # Constants are a part of flash, and code has some kilobytes.
        assert (score["model_bytes"] or 0) + 1000 < (score["flash_bytes"] or 0)
        assert 3e5 < (score["instructions"] or 0) < 2e6
    # A layer that reads 16 bits takes more.
    counts = sorted(score["instructions"] or 0 for score in scores)
    least = counts[0] + 1
    limited = _launch(
        tmp_path / "limited",
        for_="cortex-m4",
        at_most={"instructions": least, "flash": "64k"},
        pool="inline",
    )
    assert limited.exit_code == 0
    assert limited.summary["best"]["instructions"] == counts[0]
    missed = _launch(tmp_path / "missed", for_="cortex-m4", at_most="flash=4k", pool="inline")
    assert missed.exit_code == 1
    assert "the least flash is " in missed.text()


@pytest.mark.parametrize("options", [{"minimize": ["flash"]}, {"at_most": "instructions=1000"}])
def test_costs_of_a_core_need_one(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="counted on a core") as raised:
        _launch(tmp_path / "run", **options)
    assert "--for cortex-m4" in str(raised.value.fix)


def test_scores_of_another_form_are_not_taken_from_the_store(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/studies.db"
    sizes = [
        {(t.outcome.score or {})["model_bytes"] for t in _launch(
            tmp_path / form, for_=form, storage=storage, study=form, pool="inline"
        ).trials}
        for form in ("qmod", "c")
    ]  # fmt: skip
    assert sizes[0].isdisjoint(sizes[1])
