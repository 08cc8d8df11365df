"""What a search keeps of its winner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qsearch.data import prepare_data
from qsearch.search import winner
from workers.datasets.protocol import InputSpec

SPEC = InputSpec("x", (1, 4), "float32")
RUN_BYTES = 16


@pytest.mark.parametrize(("limit", "kept"), [(2 * RUN_BYTES, 2), (2 * RUN_BYTES - 1, 1), (0, 1)])
def test_sample_inputs_stay_within_their_bytes_but_for_the_first(
    limit: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    data = prepare_data({"x": rows}, (SPEC,), name="calib", objects_folder=tmp_path)
    monkeypatch.setattr(winner, "_MAX_BYTES", limit)
    found = winner.runs_of(winner.sample_inputs(data, (SPEC,)), ["x"])
    np.testing.assert_array_equal(np.concatenate([run["x"] for run in found]), rows[:kept])
