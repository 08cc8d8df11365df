"""Arithmetic on whole numbers of a model: what compile writes verifies, or compile says no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.targets.ort.session import OrtExecutor
from qsearch.cli.main import run

node = helper.make_node
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)
TABLE, WEIGHT = (RNG.standard_normal(shape).astype(np.float32) for shape in ((32, 16), (16, 16)))
READ = [node("Gather", ["table", "place"], ["row"]), node("MatMul", ["row", "w"], ["y"])]


def buckets() -> tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any]]:
    """Places that floats become, behind what has no integer form."""
    nodes = [
        node("Mod", ["x", "seven"], ["m"], fmod=1),
        node("Cast", ["m"], ["g"], to=INT64),
        node("Add", ["g", "eight"], ["g8"]),
        node("Min", ["g8", "last"], ["gm"]),
        node("Where", ["low", "eight", "gm"], ["place"]),
    ]
    nodes.insert(2, node("Less", ["g", "zero"], ["low"]))
    held = {"seven": np.float32(7), "eight": 8, "last": 31, "zero": 0}
    return (
        nodes,
        held,
        {"x": (np.random.default_rng(2).standard_normal((8, 12)) * 5).astype(np.float32)},
    )


def boxes() -> tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any]]:
    """Heights of boxes, in int32."""
    nodes = [
        node("Cast", ["box"], ["b"], to=TensorProto.INT32),
        node("Gather", ["b", "three"], ["bottom"], axis=2),
        node("Gather", ["b", "one"], ["top"], axis=2),
        node("Sub", ["bottom", "top"], ["place"]),
    ]
    rng = np.random.default_rng(3)
    top = rng.integers(0, 400, (8, 12, 2))
    box = np.concatenate([top, top + rng.integers(0, 32, (8, 12, 2))], axis=-1)
    return nodes, {"three": 3, "one": 1}, {"box": box}


def hashes() -> tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any]]:
    """A product that is meant to wrap."""
    nodes = [node("Mul", ["i", "p"], ["a"]), node("BitwiseAnd", ["a", "m"], ["place"])]
    held = {"p": 6364136223846793005, "m": 31}
    return nodes, held, {"i": np.random.default_rng(4).integers(0, 5000, (8, 12))}


def products() -> tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any]]:
    """A mask that is a product of two vectors, beside a table."""
    nodes = [
        node("MatMul", ["i", "j"], ["p"]),
        node("Cast", ["p"], ["mask"], to=FLOAT),
        node("MatMul", ["x", "v"], ["h"]),
        node("Mul", ["h", "mask"], ["masked"]),
        node("ArgMax", ["h"], ["place"], axis=2, keepdims=0),
    ]
    rng = np.random.default_rng(1)
    h = rng.standard_normal((8, 12, 16))
    largest = rng.integers(0, 16, (8, 12, 1))  # far from the second: rounding moves no place
    np.put_along_axis(h, largest, 4 + np.abs(np.take_along_axis(h, largest, -1)), -1)
    x = (h @ np.linalg.inv(WEIGHT)).astype(np.float32)
    i, j = rng.integers(0, 2, (8, 12, 1)), rng.integers(0, 2, (8, 1, 16))
    return nodes, {"v": WEIGHT}, {"x": x, "i": i, "j": j}


@pytest.mark.parametrize("made", [buckets, boxes, hashes, products])
def test_what_compile_writes_verifies_and_computes_what_the_model_does(
    made: Any, tmp_path: Path
) -> None:
    nodes, held, data = made()
    model, file, stored = (tmp_path / name for name in ("m.onnx", "m.qmod", "d.npz"))
    results = ["y", "masked"] if made is products else ["y"]
    taken = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [1, *array.shape[1:]]
        )
        for name, array in data.items()
    ]
    given = [helper.make_tensor_value_info(name, FLOAT, None) for name in results]
    held |= {"table": TABLE, "w": WEIGHT}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    graph = helper.make_graph([*nodes, *READ], "g", taken, given, constants)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    np.savez(stored, **data)
    assert run(["doctor", str(model)]) == 0
    assert run(["compile", str(model), "--calib", str(stored), "-o", str(file)]) == 0
    assert run(["verify", str(file)]) == 0
    module, session = qsearch.load(file), OrtExecutor(model.read_bytes())
    rows = [{name: array[k : k + 1] for name, array in data.items()} for k in range(8)]
    for place in range(len(results)):
        wanted = np.stack([session.run(row)[place] for row in rows])
        found = np.stack([module.run(row)[place] for row in rows])
        assert np.square(found - wanted).sum() < 1e-2 * np.square(wanted).sum()


@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_arithmetic_behind_the_integers_of_a_float_ends_with_1_as_its_verification_does(
    operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Cast", ["h"], ["i"], to=INT64),
        node(operator, ["i", "three"], ["j"]),
        node("Cast", ["j"], ["y"], to=FLOAT),
    ]
    constants = [
        numpy_helper.from_array(WEIGHT, "w"),
        numpy_helper.from_array(np.array(3), "three"),
    ]
    taken = [helper.make_tensor_value_info("x", FLOAT, [1, 16])]
    given = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "g", taken, given, constants)
    model, file, stored = (tmp_path / name for name in ("m.onnx", "m.qmod", "d.npz"))
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    np.savez(stored, x=RNG.standard_normal((8, 16)).astype(np.float32))
    assert run(["compile", str(model), "--calib", str(stored), "-o", str(file)]) == 1
    assert "the module is not proved: @dequantize_outputs" in capsys.readouterr().err
    assert run(["verify", str(file)]) == 1
