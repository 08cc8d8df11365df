"""The winner of a search is audited: what mends it is one more trial under the rules of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qsearch
from compiler.runtime.artifact import load_qmod
from qsearch.search.driver import Driver
from qsearch.search.result import SearchResult
from qsearch.store.records import NewTrial
from tests.compiler.quantize.planting import planted


def searched(folder: Path, **settings: Any) -> SearchResult:
    return qsearch.launch(
        "digits",
        pool="inline",
        out=folder / "run",
        storage=f"sqlite:///{folder / 's.db'}",
        **{"trials": 1, **settings},
    )


def test_a_fault_of_the_winner_is_mended_by_one_more_trial(tmp_path: Path) -> None:
    with planted("coarse", 2, other=0):
        result = searched(tmp_path)
        again = searched(tmp_path)
    first, mended = result.trials
    scores = [(one.outcome.score or {})["sqnr_db"] or 0.0 for one in (first, mended)]
    assert scores[1] > scores[0] + 3
    (name,) = mended.qconfig["layers"].keys() - first.qconfig["layers"].keys()
    assert name.startswith("@")
    assert (mended.params, mended.work_hash != first.work_hash) == (first.params, True)
    shipped = load_qmod(tmp_path / "run" / "best.qmod").qconfig
    assert shipped is not None
    assert shipped.to_dict() == mended.qconfig
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["audit"]["trial"] == mended.number
    assert name in report["audit"]["repairs"][0]
    assert name in result.text()
    assert [one.number for one in again.trials] == [0, 1]


@pytest.mark.parametrize("noted", [False, True])
def test_a_kill_before_the_repaired_winner_runs_loses_nothing(
    noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Driver, new: NewTrial, note: Callable[[], None]) -> None:
        self.context.repository.add_trials(self.context.study.id, [new])
        if noted:
            note()
        raise RuntimeError("killed")

    with planted("coarse", 2, other=0):
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "run_also", killed)
            with pytest.raises(RuntimeError, match="killed"):
                searched(tmp_path)
        result = searched(tmp_path)
    assert [one.outcome.score is None for one in result.trials] == [False, False]
    assert result.summary["audit"]["trial"] == result.best_trial.number == 1
    assert "the audit of compile may mend points of it as well" in result.text()


def test_the_repaired_winner_is_none_of_the_trials_of_a_longer_search(tmp_path: Path) -> None:
    with planted("coarse", 2, other=0):
        assert [one.number for one in searched(tmp_path).trials] == [0, 1]
        longer = searched(tmp_path, trials=3)
    assert [one.number for one in longer.trials][:4] == [0, 1, 2, 3]


def test_a_sound_winner_gets_no_further_trial(tmp_path: Path) -> None:
    result = searched(tmp_path)
    assert [one.number for one in result.trials] == [0]
    assert result.summary["audit"]["repairs"] == []


def test_a_space_of_the_users_own_is_not_left(tmp_path: Path) -> None:
    with planted("coarse", 2, other=0):
        result = searched(tmp_path, space={"fields": {"calibrate_mode": ["max"]}})
    assert [one.number for one in result.trials] == [0]
