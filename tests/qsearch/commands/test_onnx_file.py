"""Written ONNX models: what they take is what they were tried with."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qsearch.commands.onnx_file import write_onnx


def reversed_rows() -> onnx.ModelProto:
    """An operator whose constant counts the samples; onnx's shape inference does not compare."""
    graph = helper.make_graph(
        [helper.make_node("ReverseSequence", ["x", "lengths"], ["y"], time_axis=1, batch_axis=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array([3]), "lengths")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", [None, 1])
def test_a_model_that_fails_for_several_samples_is_written_for_one(
    tmp_path: Path, batch: int | None
) -> None:
    rows = [np.full((1, 4), number, np.float32) for number in (1, 2)]
    samples = [({"x": row}, [row]) for row in rows]
    module: Any = SimpleNamespace(interface=None, samples=samples, pipeline=None)
    model = reversed_rows()
    facts, _ = write_onnx(tmp_path / "m.onnx", "qdq", model, module, batch, exact=None)
    assert facts["inputs"] == ["x: float32[1, 4]"]
    assert facts["sqnr_to_the_module_db"] is None  # equal
    assert ("one_sample_at_a_time" in facts) == (batch is None)


def test_the_printed_code_runs_for_inputs_of_any_name(tmp_path: Path) -> None:
    names = ["x:0", "x/0", "int", "outputs", "numpy", 'a"b']
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2 + k]) for k, n in enumerate(names)
    ]
    node = helper.make_node("Concat", names, ["y"], axis=1)
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 27])]
    graph = helper.make_graph([node], "g", ports, result)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {name: np.ones((1, 2 + k), np.float32) for k, name in enumerate(names)}
    samples = 2 * [(given, [np.ones((1, 27), np.float32)])]
    module: Any = SimpleNamespace(interface=None, samples=samples, pipeline=None)
    _, code = write_onnx(tmp_path / "m.onnx", "qdq", model, module, 1, exact=None)
    found: dict[str, Any] = {}
    exec(textwrap.dedent(code), found)
    assert found["outputs"][0].shape == (1, 27)
    assert "int" not in found
