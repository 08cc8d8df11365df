"""Memory of the C as a cost: in every score where it is asked for, with a limit in k or M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import qsearch

pytestmark = pytest.mark.usefixtures("quick_space")

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
