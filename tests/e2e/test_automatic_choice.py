"""What ``compile`` chooses alone keeps networks of common kinds at the accuracy of 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qsearch
from tests.benchmarks.scores import decibels
from tests.benchmarks.unseen_networks import NETWORKS, Network
from tests.e2e.nearness import quantized


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet", "sequence"])
def test_smoothing_is_not_chosen_where_it_makes_other_tensors_uneven(
    name: str, tmp_path: Path
) -> None:
    """Chosen by the spread of the channels alone, it left 1 and 35 dB of 46 and 54."""
    path = tmp_path / "m.onnx"
    path.write_bytes(NETWORKS[name]().SerializeToString())
    session = onnxruntime.InferenceSession(path)
    shape = session.get_inputs()[0].shape[1:]
    calib, judged = np.random.default_rng(0).normal(0, 1, (2, 8, *shape)).astype(np.float32)
    module = qsearch.quantize(path, {"x": calib})
    wanted = [session.run(None, {"x": one[None]})[0] for one in judged]
    found = [module.run({"x": one[None]})[0] for one in judged]
    noise = float(np.square(np.subtract(found, wanted)).sum())
    assert decibels(float(np.square(wanted).sum()), noise) > 42


@pytest.mark.parametrize("spread", [1e3, 1e4])
@pytest.mark.parametrize("seed", range(2))
def test_a_large_channel_that_small_weights_undo_does_not_hide_the_others(
    seed: int, spread: float, tmp_path: Path
) -> None:
    """Its square is all of the signal of the tensor, and little of what the layer makes of it."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 0.3, (8, 3, 3, 3)), rng.normal(0, 0.15, (8, 8, 3, 3))
    weights[0][2] *= spread
    weights[1][:, 2] /= spread
    g = Network(seed)
    x = g("Relu", g("Conv", g.input(1, 3, 12, 12), g.weight(weights[0]), pads=[1] * 4))
    model = g.model(g("Conv", x, g.weight(weights[1]), pads=[1] * 4))
    _, near = quantized(model, lambda rng: {"x": rng.normal(0, 1, (16, 3, 12, 12))}, tmp_path, seed)
    assert near > 24
