"""Functions and constant Ifs: gone after the import, whatever their inner names are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import compiler
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.frontend.from_onnx.node import ConstantInputError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call
from compiler.quantize import QConfig, diagnose, prerequisite_optimize

X = np.array([[-1.0, 2.0]], np.float32)
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def value(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] = (1, 2)) -> object:
    return helper.make_tensor_value_info(name, kind, shape)


def branch(name: str, nodes: list[onnx.NodeProto], output: str, **weights: object) -> object:
    stored = [numpy_helper.from_array(np.asarray(w, "f4"), n) for n, w in weights.items()]
    return helper.make_graph(nodes, name, [], [value(output)], stored)


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, object] | None = None,
    inputs: tuple[object, ...] = (),
    functions: tuple[object, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x"), *inputs],
        [value("y")],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8, functions=functions)


def run(proto: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:  # type: ignore[type-arg]
    mod, params = load(proto.SerializeToString())
    return compiler.evaluate(mod, {"x": x, **params})[0]


def choice(name: str, cond: str, output: str = "y", offset: float = 10.0) -> onnx.NodeProto:
    """An If over x whose branches use the same inner names."""
    then = [helper.make_node("Mul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["r"])]
    other = [helper.make_node("Add", ["x", "w"], ["t"])]
    return helper.make_node(
        "If",
        [cond],
        [output],
        name=name,
        then_branch=branch("then", then, "r", w=[[2.0, 2.0]]),
        else_branch=branch("else", other, "t", w=[[offset, offset]]),
    )


@pytest.mark.parametrize(("cond", "wanted"), [(True, [[0, 4]]), (False, [[9, 12]])])
def test_the_branch_of_a_constant_condition_stands_for_the_if(
    cond: bool, wanted: list[list[float]]
) -> None:
    found = run(model([choice("if0", "c")], {"c": np.array(cond)}))
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_a_condition_that_shapes_decide_is_constant() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Equal", ["n", "two"], ["c"]),
        choice("if0", "c"),
    ]
    found = run(model(nodes, {"one": np.array(1), "two": np.array(2)}))
    np.testing.assert_array_equal(found, [[0, 4]])


def test_two_ifs_may_use_the_same_inner_names() -> None:
    nodes = [
        choice("if0", "c", "a"),
        choice("if1", "c", "b", offset=20.0),
        helper.make_node("Sub", ["b", "a"], ["y"]),
    ]
    found = run(model(nodes, {"c": np.array(False)}))
    np.testing.assert_array_equal(found, [[10, 10]])


def test_a_branch_may_pass_an_outer_tensor_and_hold_another_if() -> None:
    inner = helper.make_node(
        "If",
        ["c"],
        ["q"],
        then_branch=branch("a", [helper.make_node("Neg", ["t"], ["n"])], "n"),
        else_branch=branch("b", [helper.make_node("Abs", ["t"], ["n"])], "n"),
    )
    outer = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="outer",
        then_branch=branch("o", [helper.make_node("Relu", ["x"], ["t"]), inner], "q"),
        else_branch=branch("p", [], "x"),
    )
    np.testing.assert_array_equal(run(model([outer], {"c": np.array(True)})), [[0, -2]])
    np.testing.assert_array_equal(run(model([outer], {"c": np.array(False)})), X)


def test_a_condition_from_an_input_is_refused_by_name() -> None:
    proto = model([choice("if0", "c")], inputs=(value("c", TensorProto.BOOL, ()),))
    with pytest.raises(ConstantInputError, match="the condition") as caught:
        load(proto.SerializeToString())
    assert "if0" in str(caught.value)


def test_only_the_branch_that_is_taken_must_be_supported() -> None:
    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("a", [helper.make_node("Relu", ["x"], ["r"])], "r"),
        else_branch=branch("b", [helper.make_node("NonZero", ["x"], ["r"])], "r"),
    )
    np.testing.assert_array_equal(run(model([node], {"c": np.array(True)})), [[0, 2]])
    with pytest.raises(OnnxImportError, match="NonZero"):
        run(model([node], {"c": np.array(False)}))


def test_weights_of_a_branch_are_not_read_from_any_file(tmp_path: Path) -> None:
    proto = model([choice("if0", "c")], {"c": np.array(True)})
    for attribute in proto.graph.node[0].attribute:
        for tensor in attribute.g.initializer:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "m").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    path = tmp_path / "m" / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(OnnxImportError, match="inside the model's folder"):
        load(path)


def test_functions_are_inlined_also_where_they_call_each_other() -> None:
    double = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], OPSETS
    )
    nodes = [
        helper.make_node("Double", ["a"], ["t"], domain="own"),
        helper.make_node("Double", ["t"], ["b"], domain="own"),
    ]
    four = helper.make_function("own", "Four", ["a"], ["b"], nodes, OPSETS)
    call = helper.make_node("Four", ["x"], ["y"], domain="own")
    np.testing.assert_array_equal(run(model([call], functions=(double, four))), 4 * X)


def test_a_function_that_calls_itself_is_refused() -> None:
    nodes = [helper.make_node("Loop", ["a"], ["b"], domain="own")]
    loop = helper.make_function("own", "Loop", ["a"], ["b"], nodes, OPSETS)
    call = helper.make_node("Loop", ["x"], ["y"], domain="own")
    with pytest.raises(OnnxImportError, match="calls itself"):
        run(model([call], functions=(loop,)))


def test_functions_that_would_explode_are_measured_first() -> None:
    functions = [
        helper.make_function(
            "own",
            f"f{i}",
            ["a"],
            ["c"],
            [
                helper.make_node(f"f{i - 1}" if i else "Relu", [a], [b], domain="own" if i else "")
                for a, b in (("a", "b"), ("b", "c"))
            ],
            OPSETS,
        )
        for i in range(40)
    ]
    call = helper.make_node("f39", ["x"], ["y"], domain="own")
    with pytest.raises(OnnxImportError, match=str(2**40)):
        run(model([call], functions=tuple(functions)))


Array = NDArray[Any]
OLD = [helper.make_opsetid("", 11), helper.make_opsetid("own", 1), helper.make_opsetid("two", 1)]


def own(
    name: str,
    nodes: list[onnx.NodeProto],
    domain: str = "own",
    attributes: tuple[str, ...] = (),
    defaults: tuple[onnx.AttributeProto, ...] = (),
) -> onnx.FunctionProto:
    """A function of opset 11 from a to b."""
    return helper.make_function(
        domain, name, ["a"], ["b"], nodes, OLD, list(attributes), attribute_protos=list(defaults)
    )


def reads(op: str, name: str, kind: int) -> onnx.NodeProto:
    """A node from a to b whose attribute is that of the call."""
    node = helper.make_node(op, ["a"], ["b"])
    node.attribute.add(name=name, type=kind, ref_attr_name="given")
    return node


# Softmax of opset 11 has axes from 1 on as one; Squeeze has its axes as an attribute.
SOFTMAX = own("Soft", [helper.make_node("Softmax", ["a"], ["b"])])
SQUEEZE = own(
    "Line",
    [
        helper.make_node("Soft", ["a"], ["s"], domain="own"),
        helper.make_node("Unsqueeze", ["s"], ["u"], axes=[0]),
        helper.make_node("Squeeze", ["u"], ["b"], axes=[0]),
    ],
)
LEAKY = own("Leaky", [reads("LeakyRelu", "alpha", 1)], attributes=("given",))
ELU = own(
    "Bent",
    [reads("Elu", "alpha", 1)],
    defaults=(helper.make_attribute("given", 0.5),),
)
NEGATIVE = own("Soft", [helper.make_node("Neg", ["a"], ["b"])], domain="two")


def soft(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(axis=(1, 2), keepdims=True)


def leaky(x: Array, slope: float) -> Array:
    return np.where(x > 0, x, x * slope)


def bent(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))


Calls = list[tuple[str, str, dict[str, float]]]
OF_OTHER_OPSETS: dict[str, tuple[list[object], Calls, Callable[[Array], Array]]] = {
    "another opset": ([SOFTMAX], [("Soft", "own", {})], soft),
    "nested": (
        [SOFTMAX, SQUEEZE],
        [("Line", "own", {}), ("Line", "own", {})],
        lambda x: soft(soft(x)),
    ),
    "attributes": (
        [LEAKY],
        [("Leaky", "own", {"given": 0.3}), ("Leaky", "own", {"given": 0.7})],
        lambda x: leaky(leaky(x, 0.3), 0.7),
    ),
    "a default": (
        [ELU],
        [("Bent", "own", {}), ("Bent", "own", {"given": 2.0})],
        lambda x: bent(bent(x, 0.5), 2.0),
    ),
    "two domains": (
        [SOFTMAX, NEGATIVE],
        [("Soft", "two", {}), ("Soft", "own", {})],
        lambda x: soft(-x),
    ),
}


@pytest.mark.parametrize("name", OF_OTHER_OPSETS)
def test_functions_of_another_opset_mean_what_they_mean_there(name: str) -> None:
    functions, calls, wanted = OF_OTHER_OPSETS[name]
    values = ["x", *(f"v{place}" for place in range(len(calls) - 1)), "y"]
    nodes = [
        helper.make_node(op, [values[place]], [values[place + 1]], domain=domain, **given)
        for place, (op, domain, given) in enumerate(calls)
    ]
    proto = model(nodes, functions=tuple(functions))
    proto.opset_import.append(helper.make_opsetid("two", 1))
    for info in (*proto.graph.input, *proto.graph.output):
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, (2, 3, 2)))
    x = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("f4")
    np.testing.assert_allclose(run(proto, x), wanted(x), rtol=1e-5)


def test_a_function_of_an_opset_to_come_is_refused() -> None:
    later = [helper.make_opsetid("", 99)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("own", "Late", ["a"], ["b"], nodes, later)
    call = helper.make_node("Late", ["x"], ["y"], domain="own")
    with pytest.raises(OnnxImportError, match="imports opset 99"):
        run(model([call], functions=(function,)))


def test_an_operator_that_onnx_defines_by_others_keeps_its_name() -> None:
    call = helper.make_node("HardSwish", ["x"], ["y"], name="gate")
    mod, _ = load(model([call]).SerializeToString())
    spans = {str(node.span) for node in post_order(mod["main"].body) if isinstance(node, Call)}
    assert spans == {"ONNX node 'gate'"}


def test_a_size_that_a_definition_needs_constant_is_named() -> None:
    call = helper.make_node("CenterCropPad", ["x", "size"], ["y"], name="crop")
    size = value("size", TensorProto.INT64, (2,))
    proto = model([call], inputs=(size,))
    proto.opset_import[0].version = 18
    with pytest.raises(ConstantInputError, match="CenterCropPad: the size") as caught:
        run(proto)
    assert caught.value.input_name == "size"


def attention(opset: int = 23, inputs: str = "q k v mask") -> onnx.ModelProto:
    """A block of a transformer as exporters write it from opset 23 on."""
    rng = np.random.default_rng(0)
    weights = {f"w{name}": rng.normal(0, 0.4, (8, 8)).astype("f4") for name in "qkvo"}
    weights["mask"] = rng.normal(size=(4, 4)).astype("f4")
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"]
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    nodes.append(helper.make_node("Attention", inputs.split(), ["a"], **heads))
    nodes.append(helper.make_node("MatMul", ["a", "wo"], ["y"]))
    shape = (1, 4, 8)
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", shape=shape)],
        [value("y", shape=shape)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_attention_becomes_the_operators_that_define_it() -> None:
    proto = attention()
    x = np.random.default_rng(1).normal(size=(1, 4, 8)).astype("f4")
    mod, params = load(proto.SerializeToString())
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (found,) = compiler.evaluate(mod, {"x": x, **params})
    # The reference of ONNX sums in another order.
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    prepared = prerequisite_optimize(mod, params, 3)
    assert diagnose(prepared, QConfig.recommended()).fully_integral


@pytest.mark.parametrize(
    ("proto", "says"),
    [
        (attention(opset=17), "unsupported operator: Attention"),
        (attention(inputs="q"), "Attention: input 1 is missing"),
    ],
)
def test_attention_that_cannot_be_written_out_is_refused(proto: onnx.ModelProto, says: str) -> None:
    with pytest.raises(OnnxImportError, match=says):
        load(proto.SerializeToString())
