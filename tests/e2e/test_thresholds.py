"""The range of a value that a threshold reads reaches the threshold, however far others lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.unseen_networks import Network
from tests.e2e.nearness import quantized


@pytest.mark.parametrize("kind", ["Greater", "Less", "Sign"])
@pytest.mark.parametrize("seed", [1, 3, 5, 6])
def test_an_answer_of_zeros_and_ones_does_not_become_constant(
    seed: int, kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    g = Network(seed)
    h = g("MatMul", g.input(1, 32), g.weight(rng.normal(0, 0.3, (32, 32))))
    one = g.weight(1.0)
    signs = kind == "Sign"
    answer = g("Sign", g("Sub", h, one)) if signs else g("Cast", g(kind, h, one), to=1)
    model = g.model(answer)
    _, near = quantized(model, lambda rng: {"x": rng.normal(0, 1, (8, 32))}, tmp_path, seed)
    assert near > 13
