"""A sample of the fuzz run; the whole is ``python -m tests.compiler.frontend.fuzz_onnx``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.frontend import fuzz_onnx
from tests.compiler.frontend.fuzz_onnx import Outcome, mutated, run, tiny_network
from tests.compiler.frontend.mutations import MUTATIONS

SAMPLE = 2 * len(MUTATIONS)


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.slow
def test_every_mutation_gives_a_typed_error_or_a_right_import() -> None:
    outcomes = list(run(0, SAMPLE, seed=11))
    assert [o.index for o in outcomes] == list(range(SAMPLE))
    wrong: list[Outcome] = [o for o in outcomes if not o.allowed]
    assert not wrong
    assert {o.mutation for o in outcomes} == set(MUTATIONS)
    assert {"imported", "refused"} == {o.status for o in outcomes}


@pytest.mark.parametrize("index", [0, 7, 23])
def test_a_file_of_a_seed_is_always_the_same(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the cases of ONNX, which take seconds to collect.
    monkeypatch.setattr(fuzz_onnx, "seeds", lambda: tuple(tiny_network(i) for i in range(40)))
    first = mutated(index, 5, new_folder(tmp_path / "a"))[1].read_bytes()
    again = mutated(index, 5, new_folder(tmp_path / "b"))[1].read_bytes()
    assert np.array_equal(np.frombuffer(first, np.uint8), np.frombuffer(again, np.uint8))
