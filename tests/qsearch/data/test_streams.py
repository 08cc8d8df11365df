"""States that a model hands on are fed back over its data, and the module hands them on alike."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qsearch
from compiler.errors import CompilerError
from qsearch.commands.running import run_samples, runnable
from qsearch.data.prepared_data import Batches, PreparedData, prepare_data
from qsearch.data.streams import Cell
from qsearch.search.launch import plan
from qsearch.settings.config import resolve
from workers.batching import hash_outputs
from workers.datasets.protocol import InputSpec

Array = np.ndarray[Any, Any]
INPUTS = (InputSpec("x", (1, 2), "float32"), InputSpec("h", (1, 3), "float32"))
RNG = np.random.default_rng(0)
READ, KEEP = (RNG.normal(0, 0.5, shape).astype(np.float32) for shape in ((2, 3), (3, 3)))


def step(x: Array, h: Array) -> Array:
    found: Array = np.tanh(x @ READ + h @ KEEP)
    return found


def cell() -> Cell:
    return Cell(lambda given: (state := step(given["x"], given["h"]), state), ("y", "hn"))


def states_over(signal: Array) -> Array:
    """What stands in front of each step of (steps, 2): (steps, 3)."""
    states = [np.zeros((1, 3), np.float32)]
    for x in signal:
        states.append(step(x[None], states[-1]))
    return np.concatenate(states[:-1])


def prepared(given: Any, folder: Path, states: Any = None, **options: Any) -> PreparedData:
    fields = {"states": {"h": "hn"} if states is None else states}
    options = {"cell": cell, "preprocess": fields, "objects_folder": folder, **options}
    return prepare_data(given, options.pop("inputs", INPUTS), name="calib", **options)


def arrays(data: PreparedData, inputs: tuple[InputSpec, ...] = INPUTS) -> dict[str, Array]:
    batches = list(Batches(data, inputs))
    return {spec.name: np.concatenate([b[spec.name] for b in batches]) for spec in inputs}


def signal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(*shape, 2)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The same cell as an ONNX file, with an output beside its state."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "read"], ["a"]),
        helper.make_node("MatMul", ["h", "keep"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["hn"]),
        helper.make_node("MatMul", ["hn", "keep"], ["y"]),
    ]
    taken = [info(spec.name, onnx.TensorProto.FLOAT, spec.shape) for spec in INPUTS]
    given = [info(name, onnx.TensorProto.FLOAT, (1, 3)) for name in ("y", "hn")]
    held = [numpy_helper.from_array(READ, "read"), numpy_helper.from_array(KEEP, "keep")]
    graph = helper.make_graph(nodes, "cell", taken, given, held)
    path = tmp_path / "cell.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    (tmp_path / "pre.yaml").write_text("states: {h: hn}\n")
    return path


@pytest.mark.parametrize("to_file", [True, False])
def test_rows_are_the_steps_of_one_stream(to_file: bool, tmp_path: Path) -> None:
    x = signal(20)
    given: Any = {"x": x}
    if to_file:
        given = tmp_path / "x.npz"
        np.savez(given, x=x)
    found = arrays(prepared(given, tmp_path))
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_allclose(found["h"], states_over(x), atol=1e-6)


def test_an_axis_more_is_of_streams_and_each_begins_at_zero(tmp_path: Path) -> None:
    x, labels = signal(4, 7), np.arange(28).reshape(4, 7)
    data = prepared({"x": x, "labels": labels}, tmp_path)
    found = arrays(data)
    assert data.count == 28
    np.testing.assert_array_equal(found["x"], x.reshape(28, 2))
    wanted = np.concatenate([states_over(one) for one in x])
    np.testing.assert_allclose(found["h"], wanted, atol=1e-6)
    given = [batch.labels for batch in Batches(data, INPUTS).with_labels()]
    np.testing.assert_array_equal(
        np.concatenate([one for one in given if one is not None]), range(28)
    )


def test_a_table_and_made_up_inputs_are_streams_too(tmp_path: Path) -> None:
    x = signal(9)
    rows = "\n".join(f"{a:.9g},{b:.9g}" for a, b in x)
    (tmp_path / "t.csv").write_text(f"a,b\n{rows}\n")
    np.testing.assert_allclose(arrays(prepared(tmp_path / "t.csv", tmp_path))["x"], x, atol=1e-6)
    made = arrays(prepared(None, tmp_path))
    np.testing.assert_allclose(made["h"], states_over(made["x"]), atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
def test_a_signal_of_one_number_a_step(shape: tuple[int, ...], tmp_path: Path) -> None:
    inputs = (InputSpec("x", (1,), "float32"), InputSpec("h", (1,), "float32"))
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)

    def total() -> Cell:
        return Cell(lambda given: [given["x"] + given["h"]], ("hn",))

    found = arrays(prepared({"x": x}, tmp_path, inputs=inputs, cell=total), inputs)
    sums = np.cumsum(x, axis=-1) - x
    np.testing.assert_allclose(found["h"], sums.ravel(), atol=1e-6)


def test_states_whose_first_axis_counts_layers(tmp_path: Path) -> None:
    inputs = (INPUTS[0], InputSpec("h", (2, 1, 3), "float32"))

    def two_layers() -> Cell:
        def run(given: Any) -> tuple[Array, ...]:
            first = step(given["x"], given["h"][0])
            return first, np.stack([first, first * given["h"][1] + 1])

        return Cell(run, ("y", "hn"))

    data = prepared({"x": signal(5)}, tmp_path, inputs=inputs, cell=two_layers)
    batches = list(Batches(data, inputs))
    assert data.whole
    assert [batch["h"].shape for batch in batches] == [(2, 1, 3)] * 5
    np.testing.assert_array_equal(batches[1]["h"][1], np.ones((1, 3), np.float32))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"states": {"z": "hn"}}, "no input 'z'"),
    "no output": ({"states": {"h": "z"}}, "no output 'z'"),
    "a list": ({"states": ["h"]}, "states is ['h']"),
    "no signal": ({"states": {"h": "hn", "x": "y"}}, "every input is a state"),
    "another shape": ({"cell": lambda: Cell(lambda _: [READ], ("hn",))}, "output 'hn' is [2, 3]"),
    "no model": ({"cell": None}, "there is none here"),
}


@pytest.mark.parametrize(("changed", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_fed_back_is_named(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=signal(3))
    with pytest.raises(CompilerError) as caught:
        prepared(tmp_path / "x.npz", tmp_path, **changed)
    assert says in str(caught.value)
    assert caught.value.fix


def test_data_that_do_not_fit_states_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", x=signal(3), h=np.zeros((3, 3), np.float32))
    with pytest.raises(CompilerError, match="the data hold 'h'"):
        prepared(tmp_path / "both.npz", tmp_path)
    with pytest.raises(CompilerError, match="labels of a stream of 4 steps are"):
        prepared({"x": signal(3, 4), "labels": np.arange(3)}, tmp_path)
    several = tuple(InputSpec(spec.name, (4, *spec.shape[1:]), spec.dtype) for spec in INPUTS)
    with pytest.raises(CompilerError, match="several samples at a time"):
        prepared({"x": signal(8)}, tmp_path, inputs=several)


def test_a_missing_state_says_how_it_is_fed_back(model: Path) -> None:
    with pytest.raises(CompilerError) as caught:
        qsearch.quantize(model, {"x": signal(8)})
    assert "states: {h: OUTPUT}" in str(caught.value.fix)


def test_a_module_feeds_back_what_it_gives(model: Path) -> None:
    def data(seed: int, *shape: int) -> qsearch.DataSource:
        return qsearch.DataSource({"x": signal(*shape, seed=seed)}, model.parent / "pre.yaml")

    module = qsearch.quantize(model, data(1, 8, 30))
    module.save(model.parent / "m.qmod")
    found = run_samples(runnable(model.parent / "m.qmod"), data(2, 100))
    state, wanted, floats = np.zeros((1, 3), np.float32), [], []
    held, digest = state, hashlib.sha256()
    for x in signal(100, seed=2):
        y, state = module.run({"x": x[None], "h": state})
        hash_outputs(digest, [y, state])
        held = step(x[None], held)
        wanted.append(y)
        floats.append(held @ KEEP)
    assert found.digest == digest.hexdigest()
    error = np.square(np.concatenate(wanted) - np.concatenate(floats)).sum()
    assert np.square(np.concatenate(floats)).sum() > 1e3 * error


@pytest.mark.usefixtures("quick_space")
def test_a_launch_takes_streams_and_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    def launch(trials: int) -> Any:
        return qsearch.launch(
            model,
            calib={"x": signal(4, 20)},
            preprocess=tmp_path / "pre.yaml",
            trials=trials,
            pool="inline",
            out=tmp_path / "run",
        )

    first, again = launch(2), launch(3)
    assert not any("is not used" in told for told in first.warnings)
    assert (len(first.trials), len(again.trials)) == (2, 3)


def test_a_dry_run_feeds_states_back_and_a_run_does_not_doubt_them(
    model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=signal(2, 30))
    options = {"model": str(model), "calib": str(tmp_path / "x.npz"), "out": str(tmp_path / "r")}
    found = plan(resolve({**options, "preprocess": str(tmp_path / "pre.yaml")}))
    assert found["calibration"] == f"{tmp_path / 'x.npz'}: 60 samples"
    source = qsearch.DataSource(tmp_path / "x.npz", tmp_path / "pre.yaml")
    qsearch.quantize(model, source).save(tmp_path / "m.qmod")
    assert run_samples(runnable(tmp_path / "m.qmod"), source).warnings == ()


def test_an_axis_too_many_is_named(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=signal(3, 20, 1))
    source = qsearch.DataSource(tmp_path / "x.npz", tmp_path / "pre.yaml")
    with pytest.raises(CompilerError, match=r"one axis too many(.|\n)*\[streams, steps, 2\]"):
        qsearch.quantize(model, source)
