"""Functions flattened to operator calls."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.errors import DataflowError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.ir.dataflow import dataflow
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.targets.ort.session import OrtExecutor

op = relay.op


def test_let_tuples_and_calls_of_other_functions_are_resolved() -> None:
    a = relay.var("a", (2,))
    pair = relay.Function((a,), relay.Tuple((op.nn.relu(a), op.negative(a))))
    x, held = relay.var("x", (2,)), relay.Var("held")
    callee = relay.GlobalVar("pair")
    total = op.add(relay.TupleGetItem(held, 0), relay.TupleGetItem(held, 1))
    main = relay.Function((x,), relay.Let(held, relay.Call(callee, (x,)), total))
    mod = relay.module({"main": main, "pair": pair})
    flow = dataflow(mod)
    assert [step.name for step in flow.steps] == ["nn.relu", "negative", "add"]
    assert flow.outputs[0].producer is flow.steps[2]


def test_a_function_called_twice_is_written_twice() -> None:
    a = relay.var("a", (2,))
    x = relay.var("x", (2,))
    twice = relay.GlobalVar("f")
    body = relay.Call(twice, (relay.Call(twice, (x,)),))
    mod = relay.module({"main": relay.Function((x,), body), "f": relay.Function((a,), op.exp(a))})
    assert [step.name for step in dataflow(mod).steps] == ["exp", "exp"]


def test_a_shared_value_is_computed_once_and_knows_its_readers() -> None:
    x = relay.var("x", (2,))
    shared = op.exp(x)
    mod = relay.module(relay.Function((x,), op.add(shared, op.negative(shared))))
    flow = dataflow(mod)
    assert [step.name for step in flow.steps] == ["exp", "negative", "add"]
    assert flow.steps[0].result.only_user is None
    assert flow.steps[1].result.only_user is flow.steps[2]


def test_a_long_chain_needs_no_recursion() -> None:
    x = relay.var("x", (2,))
    body = x
    for _ in range(5_000):
        body = op.negative(body)
    assert len(dataflow(relay.module(relay.Function((x,), body))).steps) == 5_000


def test_control_flow_is_refused() -> None:
    x, flag = relay.var("x", (2,)), relay.var("flag", (), "bool")
    mod = relay.module(relay.Function((x, flag), relay.If(flag, x, op.exp(x))))
    with pytest.raises(DataflowError, match="If has no dataflow form"):
        dataflow(mod)


def test_a_recursive_function_is_refused() -> None:
    x, y = relay.var("x", (2,)), relay.var("y", (2,))
    loop = relay.GlobalVar("loop")
    ty = relay.TensorType((2,), "float32")
    inner = relay.Function((y,), op.exp(relay.Call(loop, (y,))), ty)
    main = relay.Function((x,), relay.Call(loop, (x,)))
    with pytest.raises(DataflowError, match="recursive"):
        dataflow(relay.module({"main": main, "loop": inner}))


def test_a_partitioned_program_is_exported_as_one_graph() -> None:
    a, b = relay.var("a", (3,)), relay.var("b", (3,))
    first, second = relay.GlobalVar("first"), relay.GlobalVar("second")
    x, held = relay.var("x", (3,)), relay.Var("held")
    call = relay.Call(second, (relay.TupleGetItem(held, 0),))
    mod: IRModule = relay.module(
        {
            "main": relay.Function((x,), relay.Let(held, relay.Call(first, (x,)), call)),
            "first": relay.Function((a,), relay.Tuple((op.sqrt(a),))),
            "second": relay.Function((b,), op.add(b, b)),
        }
    )
    inputs = {"x": np.array([1, 4, 9], "float32")}
    (found,) = OrtExecutor(to_onnx(mod)).run(inputs)
    np.testing.assert_array_equal(found, evaluate(mod, inputs)[0])
