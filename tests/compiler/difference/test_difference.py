"""compare_modules: equal modules are equal, and the first wrong node is the one that is named."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import compiler.ops  # noqa: F401  (registers the operators)
from compiler import relay
from compiler.difference import compare_modules, random_inputs
from compiler.errors import EvaluationError
from compiler.ir.expr import Constant, Expr, Function, Quant, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.op_call import op_call
from compiler.span import Span

RNG = np.random.default_rng(0)


def network(
    wrong: str = "", *, names: bool = True, offset: float = 0.01, extra: bool = False
) -> IRModule:
    """relu, times 2, plus 1, tanh; the node called ``wrong`` is a little off."""
    x = Var("x", TensorType((1, 4, 3)))

    def span(name: str) -> Span | None:
        return Span(f"onnx:{name}") if names else None

    def constant(name: str, value: float) -> Constant:
        return Constant(np.float32(value + (offset if name == wrong else 0)))

    body: Expr = op_call("nn.relu", x, span=span("a"))
    if extra:
        body = op_call("copy", body)
    body = op_call("multiply", body, constant("b", 2), span=span("b"))
    body = op_call("add", body, constant("c", 1), span=span("c"))
    body = op_call("tanh", body, span=span("d"))
    return infer_module(IRModule({"main": Function((x,), body)}))


def batches(mod: IRModule, count: int = 2) -> list[dict[str, np.ndarray]]:  # type: ignore[type-arg]
    return [random_inputs(mod, RNG) for _ in range(count)]


def test_a_module_equals_itself_bit_for_bit() -> None:
    mod = network()
    found = compare_modules(mod, network(), batches(mod))
    assert found.equal
    assert found.first is None
    assert [node.name for node in found.nodes] == ["a", "b", "c", "d"]
    assert all(node.snr_db == math.inf for node in found.nodes)
    assert found.sentence() == "no node differs"


@pytest.mark.parametrize("wrong", ["b", "c"])
def test_the_first_node_that_differs_is_named(wrong: str) -> None:
    mod = network()
    found = compare_modules(mod, network(wrong), batches(mod))
    assert not found.equal
    assert found.first is not None
    assert found.first.name == wrong
    assert f"first difference: {wrong}" in found.sentence()


def test_the_ratio_is_that_of_signal_to_error() -> None:
    mod = network()
    inputs = batches(mod, 3)
    found = compare_modules(mod, network("c", offset=0.5), inputs)
    exact = np.stack([2 * np.maximum(batch["x"], 0) + 1 for batch in inputs])
    wanted = 10 * np.log10(np.sum(exact**2) / (0.25 * exact.size))
    assert found.first is not None
    assert found.first.snr_db == pytest.approx(wanted, rel=1e-6)
    assert found.first.max_abs_error == pytest.approx(0.5, rel=1e-6)


def test_tolerances_are_of_the_module_taken_as_right() -> None:
    mod = network()
    inputs = batches(mod)
    assert compare_modules(mod, network("c", offset=1e-6), inputs, rtol=1e-3).equal
    assert not compare_modules(mod, network("c", offset=1e-2), inputs, rtol=1e-3).equal
    assert compare_modules(mod, network("c", offset=1e-2), inputs, atol=1e-1).equal


def test_nodes_without_names_are_matched_by_their_place() -> None:
    mod = network(names=False)
    found = compare_modules(mod, network("c", names=False, extra=True), batches(mod))
    assert [node.matched_by for node in found.nodes] == ["position"] * 4
    assert found.only_in_b == 1
    assert found.first is not None
    assert found.first.operator_b == "add"


def test_nodes_are_named_if_one_module_has_names() -> None:
    mod = network()
    found = compare_modules(mod, network("b", names=False), batches(mod))
    assert found.first is not None
    assert found.first.name == "b"


@pytest.mark.parametrize("turned", [False, True])
def test_integers_are_compared_at_the_scale_and_zero_point_that_they_carry(turned: bool) -> None:
    x = Var("x", TensorType((4,)))
    real = op_call("nn.relu", x, span=Span("onnx:r"))
    scaled = op_call("add", op_call("multiply", x, Constant(np.float32(4))), relay.const(3.0))
    held = op_call("cast", op_call("maximum", scaled, relay.const(3.0)), dtype="int8")
    integer = held.with_fields(span=Span("onnx:r"), quant=Quant(0.25, 3))
    mods = [infer_module(IRModule({"main": Function((x,), each)})) for each in (real, integer)]
    data = np.array([-1, 0.25, 0.5, 30], np.float32)
    node = compare_modules(*mods[:: -1 if turned else 1], [{"x": data}]).nodes[-1]
    assert {node.dtype_a, node.dtype_b} == {"float32", "int8"}
    assert (node.name, node.scale, node.max_abs_error) == ("r", 0.25, 0)


def test_integers_are_compared_up_to_their_scale() -> None:
    x = Var("x", TensorType((1, 64)))
    real = op_call("nn.relu", x, span=Span("onnx:r"))
    scaled = op_call("round", op_call("multiply", x, Constant(np.float32(20))))
    integer = op_call("cast", op_call("nn.relu", scaled), dtype="int8", span=Span("onnx:r"))
    a = infer_module(IRModule({"main": Function((x,), real)}))
    back = op_call(
        "multiply", op_call("cast", integer, dtype="float32"), Constant(np.float32(0.05))
    )
    b = infer_module(IRModule({"main": Function((x,), back)}))
    found = compare_modules(a, b, batches(a))
    node = found.nodes[0]
    assert (node.dtype_a, node.dtype_b) == ("float32", "int8")
    assert node.scale == pytest.approx(0.05, rel=0.02)
    assert 20 < node.snr_db < 60


def test_a_module_of_float32_takes_the_inputs_of_one_of_float16() -> None:
    half, single = (infer_module(IRModule({"main": _relu(d)})) for d in ("float16", "float32"))
    found = compare_modules(half, single, batches(half), rtol=1e-3)
    assert (found.outputs[0].dtype_a, found.outputs[0].dtype_b) == ("float16", "float32")


def _relu(dtype: str) -> Function:
    x = Var("x", TensorType((1, 4, 3), dtype))
    return Function((x,), op_call("nn.relu", x))


def test_nan_agrees_with_nan_only() -> None:
    mod = network()
    inputs = [{"x": np.full((1, 4, 3), np.nan, np.float32)}]
    assert compare_modules(mod, network(), inputs).equal
    x = Var("x", TensorType((1, 4, 3)))
    zero = infer_module(
        IRModule({"main": Function((x,), op_call("multiply", op_call("zeros_like", x), x))})
    )
    clean = infer_module(IRModule({"main": Function((x,), op_call("zeros_like", x))}))
    found = compare_modules(clean, zero, inputs)
    assert not found.equal
    assert found.outputs[0].snr_db == -math.inf


def test_the_result_is_plain_json() -> None:
    mod = network()
    plain = compare_modules(mod, network("b"), batches(mod)).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False))["first"]["name"] == "b"


def test_without_inputs_there_is_nothing_to_compare() -> None:
    with pytest.raises(EvaluationError, match="no inputs"):
        compare_modules(network(), network(), [])


def test_other_inputs_are_refused() -> None:
    x, y = Var("x", TensorType((1,))), Var("y", TensorType((1,)))
    two = infer_module(IRModule({"main": Function((x, y), op_call("add", x, y))}))
    with pytest.raises(EvaluationError, match="2 inputs and 1"):
        compare_modules(network(), two, batches(network()))


def test_factors_and_offsets_of_channels_are_undone_beside_the_plain_ratio() -> None:
    rng = np.random.default_rng(5)
    factors = (10.0 ** rng.uniform(0, 2, (6, 1, 1))).astype(np.float32)
    x = relay.var("x", (4, 6, 8, 8))
    real = relay.op.multiply(x, relay.const(np.float32(1.0)))
    scaled = relay.op.add(
        relay.op.multiply(x, relay.const(100 * factors)), relay.const(7 * factors)
    )
    integers = relay.op.cast(scaled, dtype="int32")
    found = compare_modules(
        infer_module(relay.module(relay.op.nn.relu(real))),
        infer_module(relay.module(relay.op.nn.relu(integers))),
        [{"x": rng.uniform(0.5, 1.5, (4, 6, 8, 8)).astype(np.float32)} for _ in range(2)],
    )
    row = next(node for node in found.nodes if node.operator_b == "nn.relu")
    assert row.snr_db < 10
    assert row.undone_db is not None
    assert row.undone_db > 30
    assert found.to_dict()["nodes"][0].keys() >= {"undone_db"}
