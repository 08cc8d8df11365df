"""A sum beside a term that is small against it: the term is rounded, the sum is not cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.benchmarks.unseen_networks import Network
from tests.e2e.nearness import Draw, assert_proved, quantized

Build = Callable[[Network], str]


def ratio(small: float, spread: float = 1.0) -> Build:
    def build(g: Network) -> str:
        x = g("Mul", g("Abs", g.input(1, 12, 64)), g.weight(spread))
        total = g("ReduceSum", x, g.weight([2], np.int64))
        return str(g("Div", x, g("Add", total, g.weight(small))))

    return build


def difference(g: Network) -> str:
    return str(g("Sub", g.weight(1e-6), g("ReduceSum", g.input(1, 12, 64))))


def larger(g: Network) -> str:
    total = g("ReduceSum", g.input(1, 12, 64), g.weight([2], np.int64))
    return str(g("Max", total, g.random(64, fan=10**15)))


def layer_scale(small: float) -> Build:
    def build(g: Network) -> str:
        x = g.input(1, 12, 32)
        parts = (g("MatMul", x, g.random(32, 32, fan=64)) for _ in range(2))
        return str(g("Add", next(parts), g("Mul", next(parts), g.weight(small))))

    return build


def distances(g: Network) -> str:
    x = g.input(1, 12, 16)
    p, q = (g("MatMul", x, g.random(16, 8, fan=32)) for _ in range(2))
    apart = g("Sub", p, q)
    squares = g("ReduceSum", g("Mul", apart, apart), g.weight([2], np.int64))
    return str(g("Add", squares, g.weight(1e-8)))


def linear_attention(g: Network) -> str:
    x = g.input(1, 24, 16)
    q, k, v = (g("MatMul", x, g.random(16, 16, fan=32)) for _ in range(3))
    q, k = (g("Add", g("Elu", one), g.weight(1.0)) for one in (q, k))
    both = g("MatMul", q, g("MatMul", g("Transpose", k, perm=[0, 2, 1]), v))
    keys = g("ReduceSum", k, g.weight([1], np.int64))
    weights = g("ReduceSum", g("Mul", q, keys), g.weight([2], np.int64))
    return str(g("Div", both, g("Add", weights, g.weight(1e-6))))


def masked_mean(g: Network) -> str:
    """The mean that sentence encoders give: of the places that a mask marks."""
    x = g.input(1, 24, 32)
    mask = g("Slice", x, *(g.weight([k], np.int64) for k in (0, 1, 2)))
    h = g("Mul", g("MatMul", x, g.random(32, 16, fan=64)), mask)
    axis = g.weight([1], np.int64)
    held = (g("ReduceSum", one, axis, keepdims=0) for one in (h, mask))
    return str(g("Div", next(held), g("Add", next(held), g.weight(1e-9))))


CASES: Final[dict[str, tuple[Build, float]]] = {
    "1e-6": (ratio(1e-6), 40),
    "1e-8": (ratio(1e-8), 40),
    "sums of 1000": (ratio(1e-5, 20.0), 40),
    "difference": (difference, 38),
    "larger": (larger, 38),
    "layer scale 1e-6": (layer_scale(1e-6), 35),
    "layer scale 1e-8": (layer_scale(1e-8), 35),
    "distances": (distances, 30),
    "linear attention": (linear_attention, 25),
    "masked mean": (masked_mean, 34),
}
"""Graphs, and the dB that onnxruntime's static quantization or 8 bits reach."""
PROVED: Final = ("1e-6", "layer scale 1e-8", "distances")


def _drawn(shape: list[int]) -> Draw:
    """Normal numbers, but for the first of every row, which marks about half of the rows."""

    def draw(rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        values = rng.normal(0, 1, (8, *shape))
        values[..., 0] = values[..., 0] > 0
        return {"x": values}

    return draw


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_a_small_term_costs_the_sum_beside_it_nothing(name: str, seed: int, tmp_path: Path) -> None:
    build, least = CASES[name]
    g = Network(seed)
    model = g.model(build(g))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    module, near = quantized(model, _drawn(shape[1:]), tmp_path, seed)
    assert near > least
    if seed == 0 and name in PROVED:
        assert_proved(module, tmp_path)
