"""A search for a QDQ file scores the integers that the file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.search.preparation import prepare_study
from qsearch.settings.config import resolve
from tests.needs import unoptimized
from workers.metrics.sqnr import sqnr_db

DATA = {"x": np.random.default_rng(7).standard_normal((64, 4, 8, 8)).astype("float32")}


def _weight(name: str, *shape: int) -> TensorProto:
    rng, scale = np.random.default_rng(len(name) + shape[0]), np.prod(shape[1:]) ** -0.5
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype("float32"), name)


def residual(folder: Path) -> Path:
    """Four convolutions whose results are added to what they read, and a classifier."""
    nodes, weights, value = [], [_weight("classes", 4, 16)], "x"
    for place in range(4):
        made, total = f"conv_{place}", f"sum_{place}"
        weights.append(_weight(f"w_{place}", 4, 4, 3, 3))
        nodes += [
            helper.make_node("Conv", [value, f"w_{place}"], [made], made, pads=[1, 1, 1, 1]),
            helper.make_node("Add", [made, value], [total], total),
            helper.make_node("Relu", [total], [f"relu_{place}"], f"relu_{place}"),
        ]
        value = f"relu_{place}"
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "classes"], ["y"], "gemm"),
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", ["N", 4, 8, 8]), ("y", ["N", 16]))
    ]
    graph = helper.make_graph(nodes, "residual", *ports, weights)
    path = folder / "residual.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def launched(folder: Path, **options: Any) -> qsearch.SearchResult:
    return qsearch.launch(
        residual(folder), calib=DATA, eval=DATA, out=folder / "r", pool="inline", **options
    )


def test_the_file_of_a_search_for_qdq_has_the_accuracy_of_its_score(tmp_path: Path) -> None:
    space = {"fields": {"calibrate_mode": ["mse", "max"], "activation_scheme": ["asymmetric"]}}
    result = launched(tmp_path, for_="qdq", trials=2, metric="sqnr", space=space)
    emitted, config = result.summary["emitted"], result.best_module().qconfig
    assert config is not None
    assert config.layers == {"<sums>": {"nbit_input": 8}}
    assert emitted["file"]["sqnr_db"] > emitted["sqnr_db"] - 0.3
    assert "its QDQ file in onnxruntime: " in result.text()
    facts = qsearch.export(tmp_path / "r", "qdq", tmp_path / "q.onnx").facts
    assert facts["in_8_bits"].startswith("100.00%")


def test_what_compile_makes_for_qdq_is_what_its_file_computes(tmp_path: Path) -> None:
    module = qsearch.quantize(residual(tmp_path), DATA, qconfig="auto,for=qdq")
    module.save(tmp_path / "m.qmod")
    facts = qsearch.export(tmp_path / "m.qmod", "qdq", tmp_path / "m.onnx").facts
    assert facts["in_8_bits"].startswith("100.00%")


@pytest.mark.parametrize(
    "asked",
    [
        {"layers": {"nbit_input": {"conv_1": 16}}},
        {"layers": {"nbit_input": {"conv_1": [8, 12]}}},
        {"layers": {"nbit_weight": [5, 8]}},
        {"fields": {"dtype_input": ["int16"], "nbit_input": [8, 16]}},
    ],
)
def test_bits_that_a_qdq_file_has_not_are_refused_before_the_search(
    asked: Mapping[str, Any],
) -> None:
    space = {"fields": {"weight_scale": ["mse"]}, **asked}
    settings = resolve({"for": "qdq", "space": space}).settings
    with pytest.raises(SettingsError, match=r"a QDQ file has no (16|12|5) bits"):
        prepare_study(settings, find_model("digits"))


def exact_db(file: Path, module: qsearch.QModule, data: Mapping[str, Any]) -> float | None:
    """SQNR of a file to its module, by products in float, which saturate on no processor."""
    session = onnxruntime.InferenceSession(str(file), unoptimized())
    (count,) = {len(array) for array in data.values()}
    rows = [{name: array[k : k + 1] for name, array in data.items()} for k in range(count)]
    return sqnr_db(map(module.run, rows), (session.run(None, row) for row in rows))


def test_a_file_moves_and_looks_up_integers_as_they_are(tmp_path: Path) -> None:
    # Causal convolutions: each is a Pad, two Reshapes and a Conv.
    zoo = Path(__file__).parents[2] / "e2e" / "zoo"
    data = {"x": np.load(zoo / "tcn.npz")["calib.x"].astype("float32")}
    module = qsearch.quantize(zoo / "tcn.onnx", data, qconfig="auto,for=qdq")
    module.save(tmp_path / "m.qmod")
    made = qsearch.export(tmp_path / "m.qmod", "qdq", tmp_path / "m.onnx")
    nodes = onnx.load(made.files[0]).graph.node
    writers = {name: node.op_type for node in nodes for name in node.output}
    pads = [node for node in nodes if node.op_type == "Pad"]
    assert len(pads) == 6
    assert {writers[node.input[0]] for node in pads} <= {"QuantizeLinear", "Reshape"}
    assert sum(node.op_type == "Cast" for node in nodes) <= 2
    found = exact_db(made.files[0], module, data)
    assert found is None or found > 45


def test_a_sum_that_nothing_rounds_keeps_what_it_joins(tmp_path: Path) -> None:
    zoo = Path(__file__).parents[2] / "e2e" / "zoo"
    data = {"x": np.load(zoo / "dueling_dqn.npz")["calib.x"].astype("float32")}
    fields = {"calibrate_mode": "mse", "activation_scheme": "asymmetric"}
    close = [
        qsearch.quantize(zoo / "dueling_dqn.onnx", data, qconfig={**fields, "layers": layers})
        for layers in ({}, {"<sums>": {"nbit_input": 8}})
    ]
    found = [one.provenance["closeness"]["sqnr_db"] for one in close]
    assert found[1] > found[0] - 1


def test_a_table_has_entries_for_the_bits_of_its_data(tmp_path: Path) -> None:
    # The logarithm of a LogSoftmax reads a sum of few exponentials, as uint16.
    zoo = Path(__file__).parents[2] / "e2e" / "zoo"
    data = {"x": np.load(zoo / "matchbox_net.npz")["calib.x"].astype("float32")}
    qsearch.quantize(zoo / "matchbox_net.onnx", data, qconfig="auto,for=qdq").save(
        tmp_path / "m.qmod"
    )
    sizes = {}
    for form in ("qdq", "onnx"):
        file = qsearch.export(tmp_path / "m.qmod", form, tmp_path / f"{form}.onnx").files[0]
        sizes[form] = max(len(one.raw_data) for one in onnx.load(file).graph.initializer)
    assert sizes["qdq"] < 40_000
    assert sizes["onnx"] < 80_000


def test_a_table_of_8_bits_looks_up_levels(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "last"], ["y"]),
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16])] for name in ("x", "y")
    ]
    weights = [_weight("first", 16, 16), _weight("last", 16, 16)]
    graph = helper.make_graph(nodes, "g", *ports, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = {"x": np.random.default_rng(0).standard_normal((16, 16)).astype("float32")}
    module = qsearch.quantize(model, data, qconfig="auto,for=qdq")
    module.save(tmp_path / "m.qmod")
    made = qsearch.export(tmp_path / "m.qmod", "qdq", tmp_path / "m.onnx")
    found = onnx.load(made.files[0]).graph
    (table,) = [node.input[0] for node in found.node if node.op_type == "GatherElements"]
    assert [one.data_type for one in found.initializer if one.name == table] == [TensorProto.UINT8]
    assert exact_db(made.files[0], module, data) is None


@pytest.mark.parametrize("assume_vnni", [False, True])
def test_the_file_of_the_winner_fits_every_processor_unless_told(
    assume_vnni: bool, tmp_path: Path
) -> None:
    result = qsearch.launch(
        "digits", for_="qdq", assume_vnni=assume_vnni, trials=2, pool="inline", out=tmp_path
    )
    scales = {trial.qconfig["weight_scale"] for trial in result.trials}
    assert ("pairs" not in scales) == assume_vnni
    emitted = result.summary["emitted"]
    if not assume_vnni:
        assert scales == {"pairs"}
        assert emitted["file"]["sqnr_db"] == pytest.approx(emitted["sqnr_db"], abs=0.5)
