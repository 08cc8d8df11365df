"""Grids that lose what they need not are named against the float model, honest ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.judgement.float_model import compare_grids
from compiler.judgement.layers import read_network
from tests.benchmarks.bench_judgement import AGAINST, IN_FILE, chain, is_found, plant
from tests.each import each


@pytest.mark.parametrize("seed", [2000, 2003, 2004])
@pytest.mark.parametrize("defect", AGAINST)
def test_a_planted_defect_is_named_at_its_layer(defect: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = chain(rng)
    layer = plant(made, defect, rng)
    inputs = [{"x": sample} for sample in made.samples]
    losses = compare_grids(read_network(made.file(True)), made.float_file(), inputs)
    point = f"q{layer + (defect == 'clipped')}"
    place = f"layer{layer}" if defect == "axis" else point
    word = {"axis": "along axis 1", "clipped": "clipped", "zero point": "zero point is off by"}
    causes = [loss.cause for loss in losses if loss.layer == place]
    assert any(word[defect] in cause for cause in causes)


def test_honest_files_are_not_named() -> None:
    for seed in each(range(6)):
        made = chain(np.random.default_rng(seed))
        inputs = [{"x": sample} for sample in made.samples]
        losses = compare_grids(read_network(made.file(True)), made.float_file(), inputs)
        assert [loss for loss in losses if "one scale" not in loss.cause] == []


def test_integers_read_on_another_grid_than_they_were_written_are_named() -> None:
    made = chain(np.random.default_rng(0))
    network = read_network(made.file(True))
    reader = next(node for node in network.nodes if "q0" in node.input)
    network.constants["other"] = network.constants["s0"] * 2
    reader.input[1] = "other"
    (loss,) = (x for x in compare_grids(network, made.float_file(), []) if x.layer == "q0")
    assert "written with scale" in loss.cause


@pytest.mark.parametrize("defect", IN_FILE)
@pytest.mark.parametrize("qdq", [False, True])
def test_a_planted_defect_of_a_file_is_found(defect: str, qdq: bool) -> None:
    for seed in each(range(4)):
        rng = np.random.default_rng(seed)
        made = chain(rng)
        assert not is_found(made.file(qdq), "", 0)
        layer = plant(made, defect, rng)
        assert is_found(made.file(qdq), defect, layer)
