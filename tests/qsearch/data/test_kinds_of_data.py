"""A table, a metric of a library and a search, as somebody does it for the first time."""

from __future__ import annotations

import re
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from onnx.utils import extract_model

import qsearch
from compiler.errors import CompilerError
from qsearch.cli.main import run
from qsearch.data.prepared_data import PreparedData, natural_metric, open_data
from tests.each import each
from workers.datasets.protocol import InputSpec
from workers.messages import DatasetRef
from workers.metrics.library import LIBRARY

RNG = np.random.default_rng(0)


@pytest.fixture
def regression(tmp_path: Path) -> Path:
    """A folder with reg.onnx and reg.csv."""
    rng = np.random.default_rng(0)  # whichever test comes first
    first, second = (rng.normal(size=size).astype(np.float32) for size in ((4, 8), (8, 1)))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", c])
        for n, c in (("x", 4), ("y", 1))
    ]
    weights = [from_array(first, "a"), from_array(second, "b")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "reg.onnx")
    rows = rng.normal(size=(64, 4)).astype(np.float32)
    frame = pandas.DataFrame(rows, columns=list("abcd"))
    frame["target"] = (np.maximum(rows @ first, 0) @ second)[:, 0] + 0.1 * rng.normal(size=64)
    frame.to_csv(tmp_path / "reg.csv", index=False)
    return tmp_path


def launch(folder: Path, **options: Any) -> qsearch.SearchResult:
    data = str(folder / "reg.csv")
    given: Any = {"calib": data, "eval": data, "pool": "inline", "trials": 2, **options}
    return qsearch.launch(str(folder / "reg.onnx"), out=folder / "run", **given)


def test_a_search_that_gives_layers_more_bits_is_not_predicted_to_repeat_compile(
    regression: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = launch(regression, metric="sqnr", progress=True)
    assert any(name.endswith("nbit_input") for name in result.trials[0].params)
    told = capsys.readouterr().err
    assert "first trials: " in told
    assert "repeat what compile chooses" not in told


@pytest.mark.slow
def test_a_regression_on_a_table_is_searched_by_its_error(regression: Path) -> None:
    result = launch(regression, metric="mae", max_drop="20%")
    assert (result.exit_code, result.objective.metric) == (0, LIBRARY["mae"])
    frame = pandas.read_csv(regression / "reg.csv")
    outputs = result.best_module()(frame[list("abcd")].to_numpy(np.float32))
    error = -np.abs(outputs[:, 0] - frame["target"]).mean()
    assert result.best_trial.value == pytest.approx(error)
    assert "mae " in result.text()
    assert LIBRARY["mae"] not in result.text()
    assert max(row["mae"] for row in qsearch.trials(result.folder, sort="-mae")) <= 0.0


def test_a_module_is_judged_by_the_metric_of_its_data(
    regression: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, module = str(regression / "reg.csv"), regression / "m.qmod"
    made = qsearch.quantize(str(regression / "reg.onnx"), table)
    made.save(module)
    frame = pandas.read_csv(table)
    wanted = -np.abs(made(frame[list("abcd")].to_numpy(np.float32))[:, 0] - frame["target"]).mean()
    assert qsearch.run_module(module, table, metric="MAE")["mae"] == pytest.approx(wanted)
    assert run(["run", str(module), "--eval", table, "--metric", "r2"]) == 0
    assert capsys.readouterr().out.startswith("r2  ")
    assert run(["run", str(module), "--eval", table]) == 0
    assert "top1" not in capsys.readouterr().out
    for word, told in (("sqnr", "judges by labels"), ("top1", "needs labels"), ("ma", "mae")):
        assert run(["run", str(module), "--eval", table, "--metric", word]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_drop_of_the_metric_is_a_limit(regression: Path) -> None:
    assert launch(regression, metric="rmse", max_drop=0.0).exit_code == 1


@pytest.mark.slow
def test_labels_that_are_numbers_are_no_classes(regression: Path) -> None:
    result = launch(regression, trials=1)
    assert result.objective.metric == "sqnr"
    assert "give --metric mae, rmse or r2" in result.text()
    assert "agreement" not in result.text()


def test_the_error_of_numbers_needs_no_labels(regression: Path) -> None:
    """Commands of motors are such numbers: the error against the float model has their unit."""
    rows = pandas.read_csv(regression / "reg.csv")[list("abcd")].to_numpy(np.float32)
    result = launch(regression, calib=rows, eval=rows, metric="mae", trials=1)
    exact = onnxruntime.InferenceSession(regression / "reg.onnx").run(None, {"x": rows})[0]
    wanted = -np.abs(result.best_module()(rows) - exact).mean()
    assert result.best_trial.value == pytest.approx(wanted)
    assert result.exit_code == 0
    assert "mae is the error against the outputs of the float model" in result.text()


def test_boxes_and_texts_have_metrics_of_their_own(regression: Path) -> None:
    data = PreparedData(DatasetRef("npz", {"labels": {"alphabet": ["-", "a"]}}), 1, "", "", "")
    assert natural_metric(data) == LIBRARY["cer"]
    assert natural_metric(replace(data, ref=DatasetRef("detection", {}))) == LIBRARY["map"]
    assert natural_metric(replace(data, ref=DatasetRef("npz", {}))) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "options", "compared"),
    [(1, {}, False), (1, {"metric": "agreement"}, True), (3, {}, True)],
)
def test_a_sound_of_the_size_of_its_input_is_no_answer(
    tmp_path: Path, channels: int, options: dict[str, Any], compared: bool
) -> None:
    """As a denoiser gives it: the place of its highest value says nothing."""
    weight = from_array(RNG.normal(size=(channels, 1, 5)).astype(np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[2, 2])
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", count, 64])
        for name, count in (("x", 1), ("y", channels))
    ]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    waves = RNG.normal(size=(32, 1, 64)).astype(np.float32)
    given: Any = {"calib": waves, "pool": "inline", "trials": 1, **options}
    result = qsearch.launch(tmp_path / "m.onnx", out=tmp_path / "run", **given)
    scores = [line for line in result.text().splitlines() if line.startswith(("float", "best"))]
    assert ["agreement" in line for line in scores] == [compared, compared]


@pytest.mark.slow
def test_a_metric_that_does_not_fit_is_bad_input(regression: Path) -> None:
    with pytest.raises(CompilerError, match="the metric map cannot be computed"):
        launch(regression, metric="map")
    words = ["launch", "--model", str(regression / "reg.onnx"), "--metric", "r2"]
    assert run([*words, "--pool", "inline", "-o", str(regression / "other")]) == 2


@pytest.mark.parametrize(
    ("preprocess", "told"),
    [({"rate": 8000}, "for a folder"), ({"masks": "m"}, "for a folder"), ({"tokenizer": "t"}, "")],
)
def test_a_field_names_the_kind_of_data(regression: Path, preprocess: Any, told: str) -> None:
    spec = InputSpec("x", (1, 4), "float32")
    with pytest.raises(CompilerError, match=told or "one input of tokens"):
        open_data(regression / "reg.csv", [spec], name="calib", preprocess=preprocess)


@pytest.mark.parametrize(("model", "told"), [("row", "3 columns"), ("tokens", "the tokenizer of")])
def test_a_csv_is_what_the_model_reads(regression: Path, model: str, told: str) -> None:
    row = [InputSpec("x", (1, 2), "float32")]
    tokens = [InputSpec(name, (1, 6), "int64") for name in ("input_ids", "attention_mask")]
    if model == "row":
        (regression / "tokenizer.json").write_text("{}")
    path = regression / "t.csv"
    path.write_text("text,a,b\n1,2,3\n")
    with pytest.raises(CompilerError, match=told):
        open_data(path, row if model == "row" else tokens, name="calib")


def test_a_tokenizer_is_looked_for_beside_the_preprocess_file(regression: Path) -> None:
    path = regression / "pre.yaml"
    path.write_text("tokenizer: away/tokenizer.json\n")
    with pytest.raises(CompilerError, match=r"no tokenizer away/tokenizer\.json"):
        launch(regression, preprocess=path)


@pytest.mark.slow
@pytest.mark.parametrize("squeezed", [False, True])
def test_an_only_score_has_no_top1(tmp_path: Path, squeezed: bool) -> None:
    weight = RNG.normal(size=(4, 1)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Sigmoid", ["h"], "p")]
    nodes += [helper.make_node("Squeeze", ["p", "axis"], ["y"])] if squeezed else []
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("y" if squeezed else "p", TensorProto.FLOAT, None),
    ]
    weights = [from_array(weight, "a"), from_array(np.asarray([1]), "axis")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rows = RNG.normal(size=(64, 4)).astype(np.float32)
    labels = (rows @ weight)[:, 0] > 0
    given: Any = {"calib": rows, "eval": (rows, labels.astype(np.int64)), "pool": "inline"}
    given |= {"trials": 1, "out": tmp_path / "run"}
    with pytest.raises(CompilerError, match="--metric auc, f1"):
        qsearch.launch(model, **given)
    result = qsearch.launch(model, metric="auc", **given)
    assert "top-1" not in result.text()
    assert result.summary["baseline"]["auc"] == 1.0


@pytest.mark.parametrize("cut", [(), ("--from", "cast")])
def test_a_column_of_texts_is_named(
    tmp_path: Path, cut: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node(
            *("LabelEncoder", ["city"], ["place"], "encode"),
            domain="ai.onnx.ml",
            keys_strings=["Oslo", "Rome"],
            values_int64s=[0, 1],
        ),
        helper.make_node("Cast", ["place"], ["number"], "cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["number", "w"], ["y"], "product"),
    ]
    ports = [
        helper.make_tensor_value_info("city", TensorProto.STRING, ["n", 1]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3]),
    ]
    weight = from_array(np.ones((1, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    assert run(["doctor", str(tmp_path / "m.onnx"), *cut]) == 2
    told = capsys.readouterr().err
    assert "column 'city' holds texts" in told
    assert "encode texts in front of the model" in told
    parts = re.findall(r"extract_model\(M, '(.+?)', (\[.*?\]), (\[.*?\])\)", told)
    for name, inputs, outputs in each(parts):
        extract_model(
            *(str(tmp_path / n) for n in ("m.onnx", name)), *map(literal_eval, (inputs, outputs))
        )
    cities = np.asarray([["Rome"], ["Oslo"]])
    (places,) = onnxruntime.InferenceSession(tmp_path / "encoders.onnx").run(None, {"city": cities})
    assert places.tolist() == [[1], [0]]
    numbers = {"place": places.astype(np.int64)}
    qsearch.quantize(tmp_path / "numbers.onnx", numbers, "calibrate_mode=global_scale")
