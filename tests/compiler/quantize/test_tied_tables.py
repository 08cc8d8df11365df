"""A table that indices pick from and that is the weight of a product is stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from compiler import evaluate
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Constant
from compiler.ir.walk import nodes_of
from compiler.quantize import Calibration, QConfig, prerequisite_optimize
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.ort.integer_executor import IntegerExecutor

WORDS, WIDTH, SAMPLES = 120, 64, 32
Array = np.ndarray[Any, np.dtype[Any]]


def model(kind: str) -> bytes:
    """Embedding, dense layer and scores of the words; rows of the table from 1 to 1e-2."""
    rng = np.random.default_rng(0)
    table = rng.normal(0, 1, (WORDS, WIDTH)).astype(np.float32)
    table *= np.logspace(0, -2, WORDS, dtype=np.float32)[:, None]
    held = {"e": table, "d": rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)}
    nodes = [
        make_node("Gather", ["e", "x"], ["g"]),
        make_node("MatMul", ["g", "d"], ["m"]),
        make_node("Relu", ["m"], ["r"]),
    ]
    if kind == "transposed":
        nodes.append(make_node("Transpose", ["e"], ["t"]))
    elif kind == "copied":
        held["t"] = np.ascontiguousarray(table.T)
    last = make_node("Gemm", ["r", "e"], ["y"], transB=1)
    nodes.append(last if kind == "shared" else make_node("MatMul", ["r", "t"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.INT64, (7,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (7, WORDS))
    stored = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("kind", ["transposed", "copied", "shared"])
def test_a_tied_table_is_stored_once_with_a_scale_for_each_row(kind: str) -> None:
    mod, params = load(model(kind))
    mod = prerequisite_optimize(mod, params, 3, simplify=True)
    rng = np.random.default_rng(1)
    data = [{"x": rng.integers(0, WORDS, 7)} for _ in range(SAMPLES)]
    module = Calibration(mod, data).candidate(QConfig.recommended()).partitioned
    assert module is not None
    tables = [
        node
        for node in nodes_of(module["quantized_main"])
        if isinstance(node, Constant) and node.data.shape == (WORDS, WIDTH)
    ]
    assert [str(table.data.dtype) for table in tables] == ["int8"]

    for proto in (to_integer_onnx(module), to_qdq_onnx(module).model):
        stored = [tensor.dims for tensor in proto.graph.initializer]
        assert sum(sorted(dims) == [WIDTH, WORDS] for dims in stored) == 1

    exact = IntegerExecutor(module)
    wanted, found = (np.stack([evaluate(m, one)[0] for one in data]) for m in (mod, module))
    for one, right in zip(data[:4], found):
        np.testing.assert_array_equal(exact.run(one)[0], right)
        np.testing.assert_array_equal(EngineExecutor(module).run(one)[0], right)
    noise, power = (
        (values.astype(np.float64) ** 2).sum(axis=(0, 1)) for values in (wanted - found, wanted)
    )
    assert (10 * np.log10(power / noise)).min() > 24  # one scale for all rows: 4
