"""OrtExecutor: inputs are checked, both sides named."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import pytest

from compiler import relay
from compiler.errors import CodegenError, EvaluationError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.pipeline import evaluate
from compiler.runtime.executor import Executor
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.ort.session import OrtExecutor

op = relay.op


@pytest.fixture
def executor() -> OrtExecutor:
    x, y = relay.var("x", (2, 3)), relay.var("y", (3,))
    return OrtExecutor(to_onnx(relay.module(relay.Function((x, y), op.add(x, y)))))


def test_a_session_runs_and_names_its_inputs(executor: OrtExecutor) -> None:
    protocol: Executor = executor
    assert protocol.input_names == ("x", "y")
    (found,) = protocol.run({"x": np.ones((2, 3), "float32"), "y": np.ones(3, "float32")})
    np.testing.assert_array_equal(found, np.full((2, 3), 2, "float32"))


def test_a_missing_input_is_named(executor: OrtExecutor) -> None:
    with pytest.raises(EvaluationError, match="input 'y' is missing"):
        executor.run({"x": np.ones((2, 3), "float32")})


def test_an_unknown_input_lists_the_nearest(executor: OrtExecutor) -> None:
    values = {"x": np.ones((2, 3), "float32"), "y": np.ones(3, "float32")}
    with pytest.raises(EvaluationError, match="no input 'xx'"):
        executor.run({**values, "xx": values["x"]})


@pytest.mark.parametrize(
    "bad", [np.ones((2, 4), "float32"), np.ones((2, 3), "float64"), np.ones(6, "float32")]
)
def test_shape_and_dtype_are_told_from_both_sides(executor: OrtExecutor, bad: np.ndarray) -> None:
    with pytest.raises(EvaluationError) as error:
        executor.run({"x": bad, "y": np.ones(3, "float32")})
    assert str(bad.shape) in str(error.value)
    assert "(2, 3)" in str(error.value)


def test_a_run_that_fails_is_an_error_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([2, 2]), "shape")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    session = OrtExecutor(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    with pytest.raises(EvaluationError, match="cannot be reshaped"):
        session.run([np.zeros(5, np.float32)])
    assert capfd.readouterr().err == ""


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(CodegenError, match="refuses the model"):
        OrtExecutor(b"nonsense")


def test_the_integer_executor_takes_the_module_itself() -> None:
    x = relay.var("x", (1, 4), "int8")
    weight = relay.const(np.arange(8, dtype="int8").reshape(2, 4))
    mod = relay.module(relay.Function((x,), op.nn.dense(x, weight, out_dtype="int32")))
    inputs = {"x": np.array([[1, -2, 3, 127]], "int8")}
    (found,) = IntegerExecutor(mod).run(inputs)
    np.testing.assert_array_equal(found, evaluate(mod, inputs)[0])
    assert IntegerExecutor(mod).input_names == ("x",)


def test_limited_runs_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Add(x, x)}'
    )
    session = OrtExecutor(model, limited=True)
    for _ in range(100):
        np.testing.assert_array_equal(session.run([np.ones(2, np.float32)])[0], [2, 2])
    assert len(started) <= 1
