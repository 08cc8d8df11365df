"""A value that a saturating function and something else read: each has the steps that it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.benchmarks.unseen_networks import Network
from tests.e2e.nearness import Draw, assert_proved, quantized

STEPS, FEATURES, HIDDEN = 6, 8, 16


def peephole_lstm(cells: float, seed: int) -> tuple[onnx.ModelProto, Draw]:
    """Cells of this size, which a tanh and three gates read."""
    rng = np.random.default_rng(seed)
    weights = {
        "W": rng.normal(0, 0.4, (1, 4 * HIDDEN, FEATURES)),
        "R": rng.normal(0, 0.2, (1, 4 * HIDDEN, HIDDEN)),
        "B": rng.normal(0, 0.1, (1, 8 * HIDDEN)),
        "P": rng.normal(0, 0.3 / cells**0.5, (1, 3 * HIDDEN)),
    }
    shapes = {"x": [1, STEPS, FEATURES], "h": [1, 1, HIDDEN], "c": [1, 1, HIDDEN]}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM", ["t", "W", "R", "B", "", "h", "c", "P"], ["y"], hidden_size=HIDDEN
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "peepholes",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def draw(rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        found = {name: rng.normal(0, 1, (16, *shape[1:])) for name, shape in shapes.items()}
        return found | {"h": np.tanh(found["h"]), "c": rng.uniform(-cells, cells, (16, 1, HIDDEN))}

    return model, draw


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("cells", "least"), [(2.0, 36.5), (20.0, 39.0), (200.0, 38.0)])
def test_cells_of_any_size_cost_a_peephole_lstm_nothing(
    cells: float, least: float, seed: int, tmp_path: Path
) -> None:
    """onnxruntime's dynamic quantization reaches 38 to 45 dB."""
    module, near = quantized(*peephole_lstm(cells, seed), tmp_path, seed)
    assert near > least
    if seed == 0 and cells == 20:
        assert_proved(module, tmp_path)


@pytest.mark.parametrize(("act", "least"), [("Tanh", 26.5), ("Sigmoid", 32.5), ("Clip", 24)])
def test_a_function_of_large_values_has_the_steps_it_needs_beside_a_product_of_them(
    act: str, least: float, tmp_path: Path
) -> None:
    g = Network(1)
    h = g("Mul", g.dense(g.input(1, 12, 32), 32, 32), g.weight(30.0))
    bounds = (g.weight(-1.0), g.weight(1.0)) if act == "Clip" else ()
    both = g.dense(g(act, h, *bounds), 32, 16), g.dense(h, 32, 16)
    model = g.model(g("Add", both[0], g("Mul", both[1], g.weight(0.01))))
    _, near = quantized(model, lambda rng: {"x": rng.normal(0, 1, (16, 12, 32))}, tmp_path)
    assert near > least
