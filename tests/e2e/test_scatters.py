"""Edge lists, pillars and unpooled maxima: integral, right, and linear in rows and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qsearch
from compiler.ir.dataflow import dataflow
from tests.benchmarks.scores import decibels
from tests.benchmarks.unseen_networks import Network
from tests.e2e.nearness import assert_proved

Samples = dict[str, NDArray[Any]]
NODES, EDGES, WIDTH = 300, 1200, 16


class Several(Network):
    """A network of several inputs; each has an axis of one sample in front."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.drawn = np.random.default_rng(seed)
        self.shapes: dict[str, tuple[int, int, tuple[int, ...]]] = {}

    def rows(self, *shape: int) -> str:
        """An input of floats."""
        return self._named(TensorProto.FLOAT, 0, shape)

    def places(self, most: int, *shape: int) -> str:
        """An input of integers below ``most``."""
        return self._named(TensorProto.INT64, most, shape)

    def _named(self, dtype: int, most: int, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.shapes)}"
        self.shapes[name] = dtype, most, (1, *shape)
        return str(self("Squeeze", name, self.weight([0], np.int64)))

    def one(self, x: str, number: int, axis: int = 0) -> str:
        """An element of an axis."""
        return str(self("Gather", x, self.weight(number, np.int64), axis=axis))

    def summed(self, places: str, updates: str, rows: int, elements: bool, how: str = "add") -> str:
        """Updates of EDGES rows at places, as ScatterND or, with the indices of every element, as
        ScatterElements."""
        zeros = self("ConstantOfShape", self.weight([rows, WIDTH], np.int64))
        index = self("Unsqueeze", places, self.weight([1], np.int64))
        if not elements:
            return str(self("ScatterND", zeros, index, updates, reduction=how))
        index = self("Expand", index, self.weight([EDGES, WIDTH], np.int64))
        return str(self("ScatterElements", zeros, index, updates, axis=0, reduction=how))

    def samples(self, count: int) -> Samples:
        """Stacked samples."""
        held: Samples = {}
        for name, (_, most, shape) in self.shapes.items():
            size = (count, *shape[1:])
            draw = self.drawn.integers(0, most, size) if most else self.drawn.normal(size=size)
            held[name] = draw if most else draw.astype(np.float32)
        return held

    def model(self, output: str) -> onnx.ModelProto:
        """The model, of opset 18."""
        made = super().model(output)
        del made.graph.input[:]
        for name, (dtype, _, shape) in self.shapes.items():
            made.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        made.opset_import[0].version = 18
        return made


def layer(elements: bool, how: str, known: bool) -> Callable[[Several], str]:
    """Rows by source, times weights of edges, scattered by target."""

    def build(g: Several) -> str:
        x = g.dense(g.rows(NODES, WIDTH), WIDTH, WIDTH)
        # Few rows take most edges, as in graphs of people or papers.
        ends = (NODES * g.drawn.random((2, EDGES)) ** 2).astype(np.int64)
        edges = g.weight(ends, np.int64) if known else g.places(NODES, 2, EDGES)
        news = g("Gather", x, g.one(edges, 0), axis=0)
        news = g("Mul", news, g.weight(g.drawn.uniform(0.1, 1, (EDGES, 1))))
        sums = g.summed(g.one(edges, 1), news, NODES, elements, how)
        return str(g("Relu", g("Add", sums, g.weight(g.drawn.normal(0, 0.1, WIDTH)))))

    return build


def alone(how: str, known: bool) -> Callable[[Several], str]:
    """The largest of the updates, without the zeros that are there before, as torch exports
    ``include_self=False``: an infinite number first takes their place."""

    def build(g: Several) -> str:
        x = g.dense(g.rows(NODES, WIDTH), WIDTH, WIDTH)
        ends = g.drawn.integers(0, NODES // 2, (2, EDGES))
        edges = g.weight(ends, np.int64) if known else g.places(NODES // 2, 2, EDGES)
        index = g("Unsqueeze", g.one(edges, 1), g.weight([1], np.int64))
        index = g("Expand", index, g.weight([EDGES, WIDTH], np.int64))
        most = np.float32(np.finfo(np.float32).max * (-1 if how == "max" else 1))
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [most])
        infinite = g("ConstantOfShape", g.weight([EDGES, WIDTH], np.int64), value=value)
        rows = g("ConstantOfShape", g.weight([NODES, WIDTH], np.int64))
        other = {"max": "min", "min": "max"}[how]
        rows = g("ScatterElements", rows, index, infinite, axis=0, reduction=other)
        news = g("Gather", x, g.one(edges, 0), axis=0)
        rows = g("ScatterElements", rows, index, news, axis=0, reduction=how)
        return g.dense(rows, WIDTH, 4)

    return build


def degrees(g: Several) -> str:
    """Graph convolutions whose norms are counted from the edges, as PyG exports them."""
    x, edges = g.rows(NODES, WIDTH), g.places(NODES, 2, EDGES - NODES)
    loops = g.weight(np.arange(NODES), np.int64)
    source, target = (g("Concat", g.one(edges, k), loops, axis=0) for k in (0, 1))
    ones = g.weight(np.ones(EDGES))
    count = g("ScatterElements", g.weight(np.zeros(NODES)), target, ones, axis=0, reduction="add")
    root = g("Pow", count, g.weight(-0.5))
    root = g("Where", g("Equal", root, g.weight(np.inf)), g.weight(0.0), root)
    norm = g("Mul", *(g("Gather", root, end, axis=0) for end in (source, target)))
    norm = g("Unsqueeze", norm, g.weight([1], np.int64))
    for act in ("Relu", ""):
        x = g("MatMul", x, g.random(WIDTH, WIDTH, fan=WIDTH))
        news = g("Mul", norm, g("Gather", x, source, axis=0))
        x = g("Add", g.summed(target, news, NODES, True), g.weight(np.linspace(-0.2, 0.2, WIDTH)))
        x = g.act(x, act)
    return str(x)


def isomorphism(g: Several) -> str:
    """GINE: relus of rows and edges are added to the row itself."""
    x, edges = g.rows(NODES, WIDTH), g.places(NODES, 2, EDGES)
    along = g.dense(g.rows(EDGES, 4), 4, WIDTH)
    for _ in range(2):
        news = g("Relu", g("Add", g("Gather", x, g.one(edges, 0), axis=0), along))
        total = g("Add", g.summed(g.one(edges, 1), news, NODES, True), g("Mul", x, g.weight(1.1)))
        x = g.dense(g.dense(total, WIDTH, WIDTH, "Relu"), WIDTH, WIDTH, "Relu")
    return g.dense(g("ReduceMean", x, g.weight([0], np.int64)), WIDTH, 3)


def pillars(g: Several) -> str:
    """Rows of points become pixels of an image; later points of a cell replace earlier ones."""
    points = g(
        "ReduceMax", g.dense(g.rows(40, 8, 9), 9, 16, "Relu"), g.weight([1], np.int64), keepdims=0
    )
    cells = g.places(16, 40, 2)
    flat = g("Add", g("Mul", g.one(cells, 0, 1), g.weight(16, np.int64)), g.one(cells, 1, 1))
    index = g("Unsqueeze", flat, g.weight([1], np.int64))
    canvas = g("ScatterND", g.weight(np.zeros((256, 16))), index, points)
    image = g("Transpose", g.shaped(canvas, 1, 16, 16, 16), perm=[0, 3, 1, 2])
    return g.conv(g.conv(image, (16, 16, 3, 3)), (4, 16, 1, 1), "")


def marks(g: Several) -> str:
    """Constants at computed places: the classes of rows, and counts of them."""
    kinds = g.places(WIDTH, NODES, 1)
    zeros, ones = g.weight(np.zeros((NODES, WIDTH))), g.weight(np.ones((NODES, 1)))
    marked = g("ScatterElements", zeros, kinds, ones, axis=1)
    counts = g("ScatterElements", zeros, kinds, ones, axis=1, reduction="add")
    return g.dense(g("Concat", marked, counts, axis=1), 2 * WIDTH, 8)


GRAPHS: Final[Mapping[str, Callable[[Several], str]]] = {
    "rows": layer(False, "add", False),
    "rows, known edges": layer(False, "add", True),
    "elements": layer(True, "add", False),
    "elements, known edges": layer(True, "add", True),
    "largest": layer(True, "max", False),
    "largest alone": alone("max", False),
    "smallest alone, known edges": alone("min", True),
    "last": layer(False, "none", False),
    "degrees": degrees,
    "isomorphism": isomorphism,
    "pillars": pillars,
    "marks": marks,
}


def examined(g: Several, output: str, folder: Path) -> tuple[float, int]:
    """dB of the first output of the quantized network, and the most elements of a tensor of its
    core; all of it is integers, and proved."""
    path = folder / "g.onnx"
    path.write_bytes(g.model(output).SerializeToString())
    report = qsearch.doctor(path).to_dict()
    assert report["fully_integral"], report["causes"]
    assert "cut" not in report
    module = qsearch.quantize(path, g.samples(6))
    assert_proved(module, folder)
    session, judged = onnxruntime.InferenceSession(path), g.samples(4)
    signal = noise = 0.0
    for k in range(4):
        one = {name: array[k : k + 1] for name, array in judged.items()}
        (wanted,), (found,) = session.run(None, one), module.run(one)
        signal += float(np.square(wanted, dtype=np.float64).sum())
        noise += float(np.square(np.subtract(found, wanted, dtype=np.float64)).sum())
    steps = dataflow(module.module, "quantized_main").steps
    return decibels(signal, noise), max(v.type.num_elements for s in steps for v in s.results)


@pytest.mark.parametrize("name", GRAPHS)
def test_rows_of_an_edge_list_are_scattered(name: str, tmp_path: Path) -> None:
    g = Several(1)
    score, most = examined(g, GRAPHS[name](g), tmp_path)
    assert score >= 28, score
    assert most <= EDGES * WIDTH


def test_maxima_return_to_where_they_came_from(tmp_path: Path) -> None:
    """Indices are places, not numbers that may be rounded. A maximum beside one that is as large
    but for noise may return to the other's place, in quantize_static as here."""
    g = Several(2)
    x = g.conv(g.shaped(g.rows(3, 24, 24), 1, 3, 24, 24), (8, 3, 3, 3))
    pooled, places = g("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    back = g("MaxUnpool", g.conv(pooled, (8, 8, 3, 3)), places, kernel_shape=[2, 2], strides=[2, 2])
    score, most = examined(g, g.conv(back, (4, 8, 3, 3), ""), tmp_path)
    assert score >= 15, score
    assert most <= 8 * 24 * 24
