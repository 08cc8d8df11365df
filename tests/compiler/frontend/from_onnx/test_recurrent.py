"""RNN, GRU and LSTM: loops, against onnxruntime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from compiler import parse, relay, text
from compiler.errors import CompilerError, OnnxImportError
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.structural import structural_equal
from compiler.ir.walk import mentions
from compiler.ops.transform.scan import ScanAttrs
from compiler.pipeline import evaluate, lower
from compiler.proof.ranges import analyse
from compiler.quantize import Candidate, QConfig, prerequisite_optimize
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.package import c_package
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.frontend.from_onnx.test_load import (
    assert_same_as_onnxruntime,
    imported,
    model,
    node,
)
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, sqnr_db

Arrays = dict[str, np.ndarray[Any, Any]]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, FEATURES, HIDDEN = 5, 2, 3, 4


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 0.6, shape).astype(np.float32)


def weights(kind: str, directions: int = 1, hidden: int = HIDDEN, reads: int = FEATURES) -> Arrays:
    rows = GATES[kind] * hidden
    return {
        "w": drawn(directions, rows, reads, seed=1),
        "r": drawn(directions, rows, hidden, seed=2),
        "b": drawn(directions, 2 * rows, seed=3),
    }


def recurrence(kind: str, inputs: str = "x w r b", **attrs: Any) -> onnx.NodeProto:
    outputs = "y last cell" if kind == "LSTM" else "y last"
    return node(kind, inputs, outputs, hidden_size=HIDDEN, name="cells", **attrs)


def outputs(kind: str) -> tuple[str, ...]:
    return ("y", "last", "cell") if kind == "LSTM" else ("y", "last")


def whole(
    kind: str, held: Arrays, inputs: str = "x w r b", steps: Any = STEPS, **attrs: Any
) -> onnx.ModelProto:
    one = recurrence(kind, "", **attrs)
    one.input[:] = [name.replace("-", "") for name in inputs.split()]
    shape = [BATCH, steps, FEATURES] if attrs.get("layout") else [steps, BATCH, FEATURES]
    return model([one], {"x": shape}, held, outputs(kind))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("from_zero", [True, False])
def test_every_step_and_the_last_states_are_those_of_onnxruntime(
    kind: str, direction: str, from_zero: bool
) -> None:
    directions = 2 if direction == "bidirectional" else 1
    held = weights(kind, directions)
    inputs = "x w r b"
    if not from_zero:
        inputs += " - h c" if kind == "LSTM" else " - h"
        held |= {name: drawn(directions, BATCH, HIDDEN, seed=4) for name in inputs[10:].split()}
    proto = whole(kind, held, inputs, direction=direction)
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("from_zero", [True, False])
def test_a_gru_that_resets_after_the_product(biased: bool, from_zero: bool) -> None:
    held = weights("GRU") | {"h": drawn(1, BATCH, HIDDEN, seed=4)}
    inputs = ("x w r b" if biased else "x w r -") + ("" if from_zero else " - h")
    proto = whole("GRU", held, inputs, linear_before_reset=1)
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


def test_an_lstm_may_have_peepholes() -> None:
    held = weights("LSTM") | {"p": drawn(1, 3 * HIDDEN, seed=5), "c": drawn(1, BATCH, HIDDEN)}
    held["h"] = drawn(1, BATCH, HIDDEN, seed=6)
    proto = whole("LSTM", held, "x w r b - h c p")
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


@pytest.mark.parametrize(
    ("kind", "attrs"),
    [
        ("RNN", {"activations": ["Relu"]}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
        (
            "LSTM",
            {
                "activations": ["HardSigmoid", "Tanh", "Softsign"],
                "activation_alpha": [0.25],
                "activation_beta": [0.4],
            },
        ),
        ("GRU", {"activations": ["hardsigmoid", "ELU"], "activation_alpha": [0.2, 0.7]}),
        ("RNN", {"clip": 0.2}),
    ],
)
def test_activations_and_their_factors(kind: str, attrs: dict[str, Any]) -> None:
    proto = whole(kind, weights(kind), **attrs)
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


@pytest.mark.parametrize("kind", GATES)
def test_batch_first_is_what_the_reference_of_onnx_computes(kind: str) -> None:
    proto = whole(kind, weights(kind), layout=1)
    last = proto.graph.output[1:2]  # the reference of some versions has no cell state
    del proto.graph.output[:]
    proto.graph.output.extend(last)
    x = drawn(BATCH, STEPS, FEATURES)
    mod, params = imported(proto)
    (found,) = evaluate(mod, {"x": x, **params})
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(found.reshape(-1), wanted.reshape(-1), rtol=1e-4, atol=1e-5)
    assert found.shape == (BATCH, 1, HIDDEN)


@pytest.mark.parametrize("kind", GATES)
def test_weights_that_other_nodes_compute(kind: str) -> None:
    held = weights(kind)
    big = np.concatenate([held["w"]] * 400, axis=2)  # above what the importer computes itself
    proto = whole(kind, held)
    proto.graph.node.insert(0, node("ReduceMean", "all", "w", axes=[3], keepdims=0))
    tensors = [t for t in proto.graph.initializer if t.name != "w"]
    tensors.append(onnx.numpy_helper.from_array(big.reshape(*held["w"].shape, 400), "all"))
    for name in ("r", "b"):
        proto.graph.node.insert(0, node("Identity", f"{name}_stored", name))
    for tensor in tensors:
        tensor.name = {"r": "r_stored", "b": "b_stored"}.get(tensor.name, tensor.name)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(tensors)
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


def test_lengths_that_are_all_the_whole_sequence_are_taken() -> None:
    held = weights("GRU") | {"n": np.full(BATCH, STEPS, np.int32)}
    proto = whole("GRU", held, "x w r b n")
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_of_their_own_lengths_end_where_they_end(kind: str, direction: str) -> None:
    held = weights(kind, 2 if direction == "bidirectional" else 1)
    held["n"] = np.array([3, 5], np.int32)
    proto = whole(kind, held, "x w r b n", direction=direction)
    assert_same_as_onnxruntime(proto, {"x": drawn(STEPS, BATCH, FEATURES)})


@pytest.mark.parametrize("kind", GATES)
def test_a_longer_sequence_is_the_same_text_with_other_numbers(kind: str) -> None:
    texts = [text(imported(whole(kind, weights(kind), steps=n))[0]) for n in (28, 2800)]
    sizes = [len(one.splitlines()) for one in texts]
    assert sizes[0] == sizes[1]
    assert structural_equal(parse(texts[1]), imported(whole(kind, weights(kind), steps=2800))[0])


REFUSED: dict[str, tuple[onnx.ModelProto, str, str]] = {
    "another activation": (
        whole("RNN", weights("RNN"), activations=["Affine"]),
        "activation 'Affine' is not one of Tanh, Sigmoid",
        "",
    ),
    "too few activations": (
        whole("LSTM", weights("LSTM"), activations=["Tanh"]),
        "1 activations, 3 are needed",
        "",
    ),
    "input_forget": (
        whole("LSTM", weights("LSTM"), input_forget=1),
        "input_forget is not supported",
        "weights of its own",
    ),
    "a direction": (whole("RNN", weights("RNN"), direction="both"), "'both' is not one of", ""),
    "a free length": (
        whole("RNN", weights("RNN"), steps="length"),
        r"dimension 0 \('length'\) has no value",
        "--dim length=",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name: str) -> None:
    proto, what, fix = REFUSED[name]
    with pytest.raises(OnnxImportError, match=what) as error:
        imported(proto)
    assert fix in str(error.value)


def test_the_free_length_of_a_sequence_is_given_by_name() -> None:
    mod, _ = imported(whole("RNN", weights("RNN"), steps="length"), dims={"length": 3})
    assert mod["main"].params[0].tensor_type.concrete_shape == (3, BATCH, FEATURES)


def quantized(kind: str, steps: int, **changes: Any) -> tuple[IRModule, Candidate, list[Arrays]]:
    """A recurrence of a sequence, its candidate, and what it was calibrated on."""
    held = weights(kind, hidden=8, reads=6)
    held["r"] /= 2  # a recurrence of larger weights is chaotic: it multiplies every error
    one = node(kind, "x w r b", "y", hidden_size=8)
    mod, params = imported(model([one], {"x": [steps, 1, 6]}, held))
    prepared = prerequisite_optimize(mod, params, 3)
    rng = np.random.default_rng(7)
    data = [{"x": rng.normal(size=(steps, 1, 6)).astype(np.float32)} for _ in range(8)]
    asked = {"calibrate_mode": "max", "partition_conversions": "fully_integral", **changes}
    config = QConfig.recommended(**asked)
    return prepared, calibrated(prepared, config, data), data


@pytest.mark.parametrize("kind", GATES)
def test_integers_only_with_one_copy_of_the_weights(kind: str) -> None:
    _, candidate, data = quantized(kind, steps=3)
    module = candidate.partitioned
    assert module is not None
    rows = GATES[kind] * 8
    assert candidate.cost.weight_bytes == rows * 6 + rows * 8
    held = {
        call.args[1]
        for call in post_order(module["quantized_main"].body)
        if isinstance(call, Call) and is_op_call(call, "nn.dense")
    }
    assert all(isinstance(weight, Constant) for weight in held)
    assert len(held) == (3 if kind == "GRU" else 2)  # a GRU has two products of its state
    assert_same_integers(module, data[:1])
    assert structural_equal(parse(text(module)), module)
    (wanted,) = evaluate(module, data[0])
    for form in (CExecutor(module), EngineExecutor(module), OrtExecutor(to_integer_onnx(module))):
        np.testing.assert_array_equal(form.run(data[0])[0], wanted)


@pytest.mark.parametrize("kind", GATES)
def test_bounds_hold_in_every_step_however_many_there_are(kind: str) -> None:
    found = []
    for steps in (5, 400):
        _, candidate, _ = quantized(kind, steps)
        assert candidate.partitioned is not None
        found.append(analyse(candidate.partitioned))
    assert not found[0].findings
    assert not found[1].findings
    assert len(found[0].values) == len(found[1].values)


def test_the_cost_of_a_loop_grows_with_its_steps() -> None:
    short, long = (quantized("GRU", steps)[1].cost for steps in (5, 50))
    assert long.bit_operations == 10 * short.bit_operations
    assert long.weight_bytes == short.weight_bytes


@pytest.mark.parametrize("kind", GATES)
def test_the_c_of_a_longer_sequence_is_as_long(kind: str) -> None:
    packages = []
    for steps in (28, 280):
        _, candidate, _ = quantized(kind, steps)
        assert candidate.partitioned is not None
        packages.append(c_package(lower(candidate.partitioned).mod, "m"))
        assert f"t < {steps};" in packages[-1].files["m.c"]
    short, long = packages
    assert short.kernels == long.kernels
    assert len(long.files["m.c"]) < 1.05 * len(short.files["m.c"])


def test_a_loop_within_a_loop_is_refused() -> None:
    state, zeros = relay.var("state", (3,), "int8"), relay.const(np.zeros(3, np.int8))

    def loop(body: Expr, first: Expr) -> Call:
        groups = (relay.Tuple((first,)), relay.Tuple(()), relay.Tuple(()))
        return relay.Call(Op.get("scan"), (body, *groups), ScanAttrs(4))

    alone = relay.Function((state,), relay.Tuple((state,)))
    outer = relay.var("outer", (3,), "int8")
    inner = relay.Tuple((relay.TupleGetItem(loop(alone, outer), 0),))
    mod = relay.module(relay.TupleGetItem(loop(relay.Function((outer,), inner), zeros), 0))
    for form in (EngineExecutor, CExecutor, analyse, to_integer_onnx):
        with pytest.raises(CompilerError, match="a loop within a loop") as caught:
            form(mod, "main")
        assert caught.value.fix
    with pytest.raises(CompilerError, match=r"a loop within a loop[\s\S]*fix: write the steps"):
        evaluate(mod, {})


def test_a_state_that_nothing_limits_is_not_proved() -> None:
    total, one = relay.var("total", (3,), "int32"), relay.var("one", (3,), "int8")
    step = relay.op.add(total, relay.op.cast(one, "int32"))
    body = relay.Function((total, one), relay.Tuple((step,)))
    states = relay.Tuple((relay.const(np.zeros(3, np.int32)),))
    inputs = relay.Tuple((relay.var("x", (9, 3), "int8"),))
    attrs = ScanAttrs(9, (0,), ())
    loop = relay.Call(Op.get("scan"), (body, states, inputs, relay.Tuple(())), attrs)
    mod = relay.module(relay.TupleGetItem(loop, 0))
    x = np.arange(27, dtype=np.int8).reshape(9, 3)
    (found,) = evaluate(mod, {"x": x})
    np.testing.assert_array_equal(found, x.astype(np.int32).sum(axis=0))
    findings = analyse(mod, "main").findings
    assert any("int32 ends at" in finding.what for finding in findings)


@pytest.mark.parametrize("kind", GATES)
def test_a_stream_of_many_steps_has_the_integers_of_every_form_with_loops(kind: str) -> None:
    prepared, candidate, data = quantized(kind, 400)
    module = candidate.partitioned
    assert module is not None
    assert mentions(module["quantized_main"], ("scan",))
    assert structural_equal(parse(text(module)), module)
    (wanted,) = evaluate(module, data[0])
    for form in (EngineExecutor(module), OrtExecutor(to_integer_onnx(module))):
        np.testing.assert_array_equal(form.run(data[0])[0], wanted)
    assert sqnr_db(prepared, module, data[:2]) >= 28


def test_errors_do_not_grow_with_the_steps() -> None:
    prepared, candidate, data = quantized("LSTM", steps=20)
    assert sqnr_db(prepared, candidate.partitioned, data) >= 30


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("steps", [1, 6])
def test_a_stream_gets_the_integers_of_its_states_back(kind: str, steps: int) -> None:
    """A state leaves on the scale that it comes in on: what a caller hands on is never rounded."""
    names = ["h", "c"] if kind == "LSTM" else ["h"]
    cell = recurrence(kind, "x w r b")
    cell.input.extend(["", *names])
    shapes = {"x": [steps, 1, FEATURES], **{name: [1, 1, HIDDEN] for name in names}}
    proto = model([cell], shapes, weights(kind), outputs(kind))
    prepared = prerequisite_optimize(*imported(proto), 3, simplify=True)
    rng = np.random.default_rng(3)
    data = [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(8)]
    config = QConfig.recommended(calibrate_mode="max", partition_conversions="fully_integral")
    module = calibrated(prepared, config, data).partitioned
    assert module is not None

    def run(part: str, given: Any) -> list[np.ndarray[Any, Any]]:
        return ReferenceExecutor(module, part).run(given)

    held = run("quantized_main", run("quantize_inputs", data[0]))
    given = dict(zip(names, run("dequantize_outputs", held)[1:], strict=True))
    again = run("quantize_inputs", {**data[0], **given})
    for state in held[1:]:
        assert state.dtype == np.int16
        assert any(state.size == o.size and (state.ravel() == o.ravel()).all() for o in again)


@pytest.mark.parametrize("cut", ["Slice", "Split"])
def test_states_of_all_layers_in_one_input_have_sixteen_bits(cut: str) -> None:
    held = {f"{name}{n}": array for n in (0, 1) for name, array in weights("GRU").items()}
    held |= {f"e{n}": np.array([n], np.int64) for n in (0, 1, 2)} | {"w1": drawn(1, 12, 4, seed=5)}
    cuts = [node("Slice", f"h e{n} e{n + 1} e0", f"h{n}") for n in (0, 1)]
    cuts = cuts if cut == "Slice" else [node("Split", "h", "h0 h1", axis=0)]
    cells = [
        node("GRU", f"{data} w{n} r{n} b{n}", f"y{n} last{n}", hidden_size=HIDDEN, name=f"cell{n}")
        for n, data in enumerate(("x", "between"))
    ]
    for n, cell in enumerate(cells):
        cell.input.extend(["", f"h{n}"])
    between = node("Squeeze", "y0 e1", "between")
    end = [node("Squeeze", "y1 e1", "y"), node("Concat", "last0 last1", "last", axis=0)]
    shapes = {"x": [1, 1, FEATURES], "h": [2, 1, HIDDEN]}
    nodes = [*cuts, cells[0], between, cells[1], *end]
    prepared = prerequisite_optimize(*imported(model(nodes, shapes, held, ("y", "last"))), 3)
    rng = np.random.default_rng(3)
    data = [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(8)]
    config = QConfig.recommended(calibrate_mode="max", partition_conversions="fully_integral")
    module = calibrated(prepared, config, data).partitioned
    assert module is not None
    taken = ReferenceExecutor(module, "quantize_inputs").run(data[0])
    assert [one.dtype for one in taken if one.size == 2 * HIDDEN] == [np.int16]
    assert_same_integers(module, data[:1])
