"""Models whose inputs have no axis of samples in front: steps come first, states of two layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import qsearch
from qsearch.cli.main import run
from qsearch.errors import DataError
from tests.qsearch.quick import QUICK_SPACE

STEPS, FEATURES, HIDDEN, CLASSES, SAMPLES = 6, 8, 16, 4, 24
Arrays = dict[str, np.ndarray[Any, Any]]


def drawn(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


def network(batch: int | str, *, stateful: bool) -> onnx.ModelProto:
    """An LSTM over the steps and a classifier of its last one; from an input ``state`` of hidden
    and cell state, and an output of the next ones, or from zeros."""
    weights = {
        "w": drawn(1, 1, 4 * HIDDEN, FEATURES),
        "r": drawn(2, 1, 4 * HIDDEN, HIDDEN),
        "b": drawn(3, 1, 8 * HIDDEN),
        "dense": drawn(4, HIDDEN, CLASSES),
        "0": np.array([0]),
        "1": np.array([1]),
        "2": np.array([2]),
    }
    read = ["x", "w", "r", "b", "", *(("h", "c") if stateful else ())]
    nodes = [
        helper.make_node("LSTM", read, ["", "last", "cell"], "lstm", hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["last", "0"], ["row"], "squeeze"),
        helper.make_node("MatMul", ["row", "dense"], ["y"], "head"),
    ]
    ports: Any = {"x": [STEPS, batch, FEATURES]}, {"y": [batch, CLASSES]}
    if stateful:
        halves = (("h", "0", "1"), ("c", "1", "2"))
        nodes[:0] = [helper.make_node("Slice", ["state", a, b, "0"], [n]) for n, a, b in halves]
        nodes.append(helper.make_node("Concat", ["last", "cell"], ["next"], axis=0))
        ports[0]["state"] = ports[1]["next"] = [2, batch, HIDDEN]
    taken, given = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in p.items()]
        for p in ports
    )
    constants = [from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", taken, given, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def data(*, stateful: bool) -> Arrays:
    arrays = {"x": drawn(5, SAMPLES, STEPS, 1, FEATURES)}
    return arrays | ({"state": drawn(6, SAMPLES, 2, 1, HIDDEN)} if stateful else {})


def floats(file: Path, arrays: Arrays) -> list[list[np.ndarray[Any, Any]]]:
    from compiler.targets.ort.session import OrtExecutor

    session = OrtExecutor(file.read_bytes())
    return [list(session.run({n: a[place] for n, a in arrays.items()})) for place in range(SAMPLES)]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A folder with the stateful model of an open batch, and whole samples."""
    onnx.save(network("batch", stateful=True), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **data(stateful=True))
    return tmp_path


def test_a_stream_is_quantized_with_samples_that_are_whole_runs(
    stream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert qsearch.doctor(stream / "m.onnx", dim={"batch": 1}).to_dict()["fully_integral"]
    module = qsearch.quantize(stream / "m.onnx", stream / "d.npz")
    arrays = data(stateful=True)
    for place, wanted in enumerate(floats(stream / "m.onnx", arrays)):
        found = module.run({name: array[place] for name, array in arrays.items()})
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=0.05)
    module.save(stream / "m.qmod")
    assert qsearch.verify(stream / "m.qmod").proved
    assert run(["run", str(stream / "m.qmod"), "--eval", str(stream / "d.npz")]) == 0
    assert f"n                {SAMPLES}" in capsys.readouterr().out


def test_runs_given_as_python_objects_are_samples(stream: Path) -> None:
    arrays = data(stateful=True)
    items = [{name: array[place] for name, array in arrays.items()} for place in range(SAMPLES)]
    by_file = qsearch.quantize(stream / "m.onnx", stream / "d.npz")
    by_items = qsearch.quantize(stream / "m.onnx", items)
    assert str(by_file.module) == str(by_items.module)


def test_made_up_samples_are_whole_where_the_first_axes_differ(stream: Path) -> None:
    module = qsearch.quantize(stream / "m.onnx", dim={"batch": 1})
    assert module.proof is not None
    assert module.proof["verdict"] == "proved"


def test_a_scalar_input_and_one_without_a_batch(tmp_path: Path) -> None:
    held = {"f": drawn(7, FEATURES), "w": drawn(8, FEATURES, CLASSES)}
    nodes = [
        helper.make_node("Cast", ["step"], ["t"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["t", "f"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["wave"]),
        helper.make_node("Add", ["x", "wave"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["y"]),
    ]
    taken = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, FEATURES]),
        helper.make_tensor_value_info("step", TensorProto.INT64, []),
    ]
    given = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, CLASSES])]
    constants = [from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", taken, given, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    arrays = {"x": drawn(9, SAMPLES, STEPS, FEATURES), "step": np.arange(SAMPLES) % 5}
    np.savez(tmp_path / "d.npz", **arrays)
    module = qsearch.quantize(tmp_path / "m.onnx", tmp_path / "d.npz")
    module.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
    wanted = arrays["x"][3] + np.sin(3 * held["f"])
    found = module.run({"x": arrays["x"][3], "step": 3})[0]
    np.testing.assert_allclose(found, wanted @ held["w"], atol=0.1)


@pytest.mark.slow
def test_a_search_scores_steps_first_by_their_labels(tmp_path: Path) -> None:
    onnx.save(network(1, stateful=False), tmp_path / "m.onnx")
    arrays = data(stateful=False)
    labels = [int(y.argmax()) for (y,) in floats(tmp_path / "m.onnx", arrays)]
    np.savez(tmp_path / "d.npz", labels=np.array(labels), **arrays)
    file = str(tmp_path / "d.npz")
    result = qsearch.launch(
        str(tmp_path / "m.onnx"),
        calib=file,
        eval=file,
        trials=4,
        space=QUICK_SPACE,
        pool="inline",
        out=str(tmp_path / "run"),
    )
    assert result.best_trial.value > 0.9
    assert qsearch.verify(tmp_path / "run").proved


def joining(axis: int) -> onnx.ModelProto:
    """A product for each of four samples, and a softmax over them (axis 0) or over classes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=axis),
    ]
    ports = (("x", [4, FEATURES]), ("y", [4, CLASSES]))
    x, y = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in ports)
    graph = helper.make_graph(nodes, "g", x, y, [from_array(drawn(1, FEATURES, CLASSES), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("command", ["compile", "insight", "launch", "run", "verify"])
def test_a_batch_whose_samples_meet_is_not_given_single_samples(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file, data = tmp_path / "m.onnx", tmp_path / "m.qmod", tmp_path / "d.npz"
    onnx.save(joining(axis=0), model)
    np.savez(data, x=drawn(2, 7, FEATURES))
    options = ["--calib", data] if command in ("compile", "insight", "launch") else ["--eval", data]
    if command == "launch":
        options += ["--out", tmp_path / "run", "--trials", "1"]
    if command in ("run", "verify"):
        qsearch.quantize(model).save(file)  # synthetic samples are whole runs here
    given = file if command in ("run", "verify") else model
    assert run([command, str(given), *map(str, options)]) == 2
    told = capsys.readouterr().err
    assert "from 4 samples together" in told
    assert f"x [runs, 4, {FEATURES}]" in told


def test_a_batch_whose_samples_meet_takes_whole_runs_and_data_of_one_run(tmp_path: Path) -> None:
    onnx.save(joining(axis=0), tmp_path / "m.onnx")
    module = qsearch.quantize(tmp_path / "m.onnx", {"x": drawn(2, 6, 4, FEATURES)})
    assert module.run({"x": drawn(3, 4, FEATURES)})[0].shape == (4, CLASSES)
    qsearch.quantize(tmp_path / "m.onnx", {"x": drawn(2, 4, FEATURES)})


def test_a_batch_of_separate_samples_takes_any_number_of_them(tmp_path: Path) -> None:
    onnx.save(joining(axis=1), tmp_path / "m.onnx")
    qsearch.quantize(tmp_path / "m.onnx", {"x": drawn(2, 7, FEATURES)})


def test_a_batch_that_gives_as_many_places_as_it_finds_is_not_given_single_samples(
    tmp_path: Path,
) -> None:
    """The result has an axis of two, as the batch has, and another length in each run."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[2, 8] x) => (float[2, 5] y, int64[2, found] n)
    { y = MatMul (x, w)  r = Relu (x)  n = NonZero (r) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(from_array(drawn(1, 8, 5), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    data = np.abs(drawn(2, 6, 8)) * np.resize([[1], [-1]], (6, 1)).astype(np.float32)
    with pytest.raises(DataError, match="computes 'n' from 2 samples together"):
        qsearch.quantize(tmp_path / "m.onnx", {"x": data})
