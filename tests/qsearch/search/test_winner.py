"""What a search keeps of its winner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qsearch
from compiler.quantize.weight_rounding import sequential_rounding
from compiler.quantize.weight_rounding.reconstruction import reconstructed
from qsearch.data.prepared_data import prepare_data
from qsearch.search import shipped
from workers.datasets.protocol import InputSpec

SPEC = InputSpec("x", (1, 4), "float32")
RUN_BYTES = 16


@pytest.mark.parametrize(("limit", "kept"), [(2 * RUN_BYTES, 2), (2 * RUN_BYTES - 1, 1), (0, 1)])
def test_sample_inputs_stay_within_their_bytes_but_for_the_first(
    limit: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    data = prepare_data({"x": rows}, (SPEC,), name="calib", objects_folder=tmp_path)
    monkeypatch.setattr(shipped, "_MAX_BYTES", limit)
    found = shipped.runs_of(shipped.sample_inputs(data, (SPEC,)), ["x"])
    np.testing.assert_array_equal(np.concatenate([run["x"] for run in found]), rows[:kept])


def test_the_weights_of_the_winner_are_rounded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []

    def counted(*args: Any) -> Any:
        fitted.append(args)
        return reconstructed(*args)

    monkeypatch.setattr(sequential_rounding, "reconstructed", counted)
    space = {"fields": {"weight_rounding": ["sequential"], "calibrate_mode": ["max"]}}
    out = tmp_path / "run"
    qsearch.launch("digits", trials=1, space=space, pool="inline", out=out)
    with_weights = 4
    assert len(fitted) == with_weights
    report = json.loads((out / "report.json").read_text())
    assert report["emitted"]["equal_outputs"] == 1.0
