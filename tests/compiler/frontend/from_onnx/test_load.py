"""load: what becomes of a model, and what is said about one that cannot be imported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.frontend.from_onnx.opsets import NEWEST_OPSET, supported_operators
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Op, Var
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TensorType
from compiler.pipeline import evaluate
from compiler.quantize import quantize
from compiler.targets.ort.session import OrtExecutor

FLOAT = TensorProto.FLOAT


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    initializers: dict[str, np.ndarray] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
    input_type: int = FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, input_type, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    result.ir_version = 8
    return result


def node(op_type: str, inputs: str, outputs: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attrs)


def imported(proto: onnx.ModelProto, **kwargs: Any) -> Any:
    return load(proto.SerializeToString(), **kwargs)


def op_names(mod: Any) -> list[str]:
    calls = (n for n in post_order(mod["main"].body) if isinstance(n, Call))
    return [c.op.name for c in calls if isinstance(c.op, Op)]


def assert_same_as_onnxruntime(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    mod, params = imported(proto)
    expected = OrtExecutor(proto).run(inputs)
    found = evaluate(mod, {**inputs, **params})
    for a, b in zip(expected, found, strict=True):
        assert a.shape == b.shape
        # onnxruntime sums in another order than numpy.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def conv_model(**attrs: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return model(
        [node("Conv", "x w b", **attrs)],
        {"x": [1, 3, 9, 8]},
        {
            "w": rng.normal(size=(4, 3, 3, 2)).astype("float32"),
            "b": rng.normal(size=4).astype("float32"),
        },
    )


def test_weights_are_named_parameters_behind_the_inputs() -> None:
    mod, params = imported(conv_model())
    assert [p.name_hint for p in mod["main"].params] == ["x", "w", "b"]
    assert set(params) == {"w", "b"}
    assert mod["main"].params[0].checked_type == TensorType((1, 3, 9, 8), "float32")


def test_a_bias_becomes_an_add_of_one_value_per_channel() -> None:
    mod, params = imported(conv_model())
    assert op_names(mod) == ["nn.conv2d", "add"]
    assert params["b"].shape == (4, 1, 1)


def test_every_node_carries_the_name_of_its_onnx_node() -> None:
    proto = model([node("Relu", "x", "t", name="first"), node("Relu", "t")], {"x": [2]})
    mod, _ = imported(proto)
    spans = [str(n.span) for n in post_order(mod["main"].body) if isinstance(n, Call)]
    assert spans == ["ONNX node 'first'", "ONNX node 'Relu_1'"]


def test_equal_attributes_are_one_record_and_others_are_told_apart() -> None:
    slopes = (0.1, 0.2, 0.1)
    nodes = [node("LeakyRelu", f"v{i}", f"v{i + 1}", alpha=a) for i, a in enumerate(slopes)]
    mod, _ = imported(model(nodes, {"v0": [2]}, outputs=("v3",)))
    first, second, third = [n for n in post_order(mod["main"].body) if isinstance(n, Call)]
    assert first.attrs is third.attrs
    assert first.attrs != second.attrs


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_auto_pad_is_resolved_to_numbers(auto_pad: str, stride: int) -> None:
    proto = conv_model(auto_pad=auto_pad, strides=[stride, stride])
    x = np.random.default_rng(1).normal(size=(1, 3, 9, 8)).astype("float32")
    assert_same_as_onnxruntime(proto, {"x": x})


def test_gemm_factors_and_transposition_go_into_the_weights() -> None:
    rng = np.random.default_rng(0)
    proto = model(
        [node("Gemm", "x w b", alpha=0.5, beta=2.0)],
        {"x": [2, 5]},
        {
            "w": rng.normal(size=(5, 3)).astype("float32"),
            "b": rng.normal(size=3).astype("float32"),
        },
    )
    mod, params = imported(proto)
    assert op_names(mod) == ["nn.dense", "add"]
    assert params["w"].shape == (3, 5)
    assert_same_as_onnxruntime(proto, {"x": rng.normal(size=(2, 5)).astype("float32")})


def test_places_of_a_grid_between_two_elements_go_where_onnxruntime_has_them() -> None:
    rng = np.random.default_rng(0)
    between = np.float32(np.arange(1, 16) / 8 - 1)
    near = np.concatenate([np.nextafter(between, np.float32(side)) for side in (-2, 2)])
    grid = np.stack(np.meshgrid(near, near), -1)[None]
    proto = model([node("GridSample", "x g", mode="nearest")], {"x": [1, 2, 16, 16]}, {"g": grid})
    assert_same_as_onnxruntime(proto, {"x": rng.normal(size=(1, 2, 16, 16)).astype("float32")})


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_of_two_computed_matrices_has_no_weight(transposed: int) -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": [2, 5], "w": [3, 5] if transposed else [5, 3], "b": [3]}
    proto = model([node("Gemm", "x w b", alpha=0.5, transB=transposed)], shapes)
    mod, _ = imported(proto)
    assert "nn.dense" not in op_names(mod)
    drawn = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    assert_same_as_onnxruntime(proto, drawn)
    quantize(mod, dataset=[drawn], qconfig="auto")  # raises where a float operator is left


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("behind", ["Cast", "Identity", "Transpose", "DequantizeLinear"])
def test_gemm_with_a_weight_behind_a_node_is_a_dense_layer(
    behind: str, transposed: int, alpha: float
) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(2, 80)).astype("float32")
    weight = rng.normal(size=(64, 80) if transposed else (80, 64)).astype("float32")
    held: dict[str, Any] = {"b": rng.normal(size=64).astype("float32"), "w": weight}
    first = node(behind, "w", "v")
    if behind == "Cast":
        first, held["w"] = node("Cast", "w", "v", to=FLOAT), weight.astype("float16")
    elif behind == "Transpose":
        held["w"] = np.ascontiguousarray(weight.T)
    elif behind == "DequantizeLinear":
        first = node("DequantizeLinear", "w s", "v")
        held |= {"w": np.clip(weight * 40, -127, 127).astype("int8"), "s": np.float32(0.025)}
    gemm = node("Gemm", "x v b", transB=transposed, alpha=alpha)
    proto = model([first, gemm], {"x": [2, 80]}, held, opset=19)
    mod, params = imported(proto)
    assert "nn.dense" in op_names(mod)
    # onnxruntime itself rounds the data where a DequantizeLinear is read.
    [wanted] = ReferenceEvaluator(proto).run(None, {"x": data})
    np.testing.assert_allclose(
        evaluate(mod, {"x": data, **params})[0], wanted, rtol=1e-4, atol=1e-4
    )
    quantize(mod, params, dataset=[{"x": data}], qconfig="auto")  # raises where a float is left


def test_an_initializer_read_in_two_forms_gives_two_parameters() -> None:
    w = np.arange(6, dtype="float32").reshape(2, 3)
    proto = model(
        [node("MatMul", "x w", "t"), node("Gemm", "x w", "u"), node("Add", "t u")],
        {"x": [4, 2]},
        {"w": w},
    )
    _, params = imported(proto)
    assert all(name.startswith("w") for name in params)
    assert_same_as_onnxruntime(proto, {"x": np.ones((4, 2), "float32")})


def test_shape_arithmetic_of_exporters_is_folded_away() -> None:
    proto = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "batch", axis=0),
            node("Unsqueeze", "batch axes", "batch1"),
            node("Concat", "batch1 rest", "shape", axis=0),
            node("Reshape", "x shape"),
        ],
        {"x": ["N", 4, 2, 3]},
        {
            "zero": np.array(0, "int64"),
            "axes": np.array([0], "int64"),
            "rest": np.array([-1], "int64"),
        },
    )
    mod, params = imported(proto)
    assert op_names(mod) == ["reshape"]
    assert not params
    assert mod["main"].body.checked_type == TensorType((1, 24), "float32")


def test_a_constant_computed_by_the_graph_is_limited_in_size() -> None:
    proto = model(
        [node("ConstantOfShape", "shape", "t"), node("Add", "x t")],
        {"x": [1]},
        {"shape": np.array([60000, 60000], "int64")},
    )
    with pytest.raises(OnnxImportError, match="would take 14400000000 bytes"):
        imported(proto)


def test_an_unknown_leading_dimension_is_one_sample() -> None:
    mod, _ = imported(model([node("Relu", "x")], {"x": ["N", 3]}))
    assert mod["main"].params[0].checked_type.shape == (1, 3)


def test_a_batch_is_one_sample_on_every_axis_that_is_called_so() -> None:
    shapes = {"x": ["batch", 3], "state": [2, "batch", 3]}
    mod, _ = imported(model([node("Add", "x state")], shapes))
    assert [p.checked_type.shape for p in mod["main"].params] == [(1, 3), (2, 1, 3)]
    mod, _ = imported(model([node("Add", "x state")], shapes), dims={"batch": 4})
    assert [p.checked_type.shape for p in mod["main"].params] == [(4, 3), (2, 4, 3)]
    with pytest.raises(OnnxImportError, match="dimension 1"):  # nodes of a graph and their edges
        imported(model([node("Add", "x edges")], {"x": ["N", 3], "edges": ["N", "N"]}))


def test_dimensions_that_are_called_a_question_mark_have_no_name() -> None:
    proto = model([node("Relu", "x")], {"x": ["?", 3, "?", "?"]})
    with pytest.raises(OnnxImportError, match=r"--dim x:2=…"):
        imported(proto)
    mod, _ = imported(proto, dims={"x:2": 5, "x:3": 7})
    assert mod["main"].params[0].checked_type.shape == (1, 3, 5, 7)


def test_dimensions_and_shapes_can_be_given() -> None:
    proto = model([node("Relu", "x")], {"x": ["N", "T"]})
    mod, _ = imported(proto, dims={"N": 2, "T": 7})
    assert mod["main"].params[0].checked_type.shape == (2, 7)
    mod, _ = imported(proto, input_shapes={"x": [3, 5]})
    assert mod["main"].params[0].checked_type.shape == (3, 5)


def test_an_unknown_inner_dimension_is_an_error_that_names_input_and_dimension() -> None:
    with pytest.raises(OnnxImportError) as error:
        imported(model([node("Relu", "x")], {"x": ["N", "T"]}))
    assert "'T'" in str(error.value)
    assert "input 'x'" in str(error.value)
    assert "--dim T=" in str(error.value)


def test_dynamic_dimensions_are_kept_when_asked() -> None:
    mod, _ = imported(model([node("Relu", "x")], {"x": ["N", "T"]}), keep_dynamic=True)
    assert mod["main"].body.checked_type.shape == (AnyDim(), AnyDim())


def test_convolutional_networks_keep_an_unknown_batch_and_height() -> None:
    proto = model(
        [
            node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
            node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "p", "g"),
            node("Flatten", "g", "f"),
            node("Softmax", "f"),
        ],
        {"x": ["N", 3, "H", 8]},
        {"w": np.ones((4, 3, 3, 3), np.float32)},
    )
    mod, params = imported(proto, keep_dynamic=True)
    assert str(mod["main"].body.checked_type) == "Tensor[(?, 4), float32]"
    for shape in [(1, 3, 4, 8), (5, 3, 10, 8)]:
        (got,) = evaluate(mod, {"x": np.ones(shape, np.float32), **params})
        assert got.shape == (shape[0], 4)


def test_padding_that_needs_an_unknown_size_is_refused() -> None:
    proto = model(
        [node("MaxPool", "x", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], {"x": [1, 3, "H", 8]}
    )
    with pytest.raises(OnnxImportError, match="static shape"):
        imported(proto, keep_dynamic=True)


def test_a_dimension_nobody_has_lists_the_ones_there_are() -> None:
    with pytest.raises(OnnxImportError, match="dimension 'batch'"):
        imported(model([node("Relu", "x")], {"x": ["N", 3]}), dims={"batch": 1})


def test_all_unsupported_operators_are_named_at_once() -> None:
    proto = model(
        [
            node("Relu", "x", "a"),
            node("Det", "a", "b", name="the_det"),
            helper.make_node("Secret", ["b"], ["y"], name="hidden", domain="my.domain"),
        ],
        {"x": [1, 2, 2]},
    )
    with pytest.raises(OnnxImportError) as error:
        imported(proto)
    message = str(error.value)
    assert "Det (node 'the_det')" in message
    assert "my.domain::Secret (node 'hidden')" in message
    assert "write Det with other operators before the export" in message


def test_an_unsupported_operator_is_told_with_the_nearest_names_only() -> None:
    proto = model([node("ReduceSumSquares", "x", name="squares")], {"x": [1, 2]})
    with pytest.raises(OnnxImportError, match="ReduceSumSquares \\(node 'squares'\\)") as error:
        imported(proto)
    assert "ReduceSumSquare" in str(error.value.fix)
    nearest = re.search(r"names that are read: (.*?)\)", str(error.value.fix))
    assert nearest is not None
    assert 1 <= len(nearest[1].split(", ")) <= 3
    assert "Conv" not in str(error.value)


def test_what_has_no_static_form_is_told_with_what_to_do() -> None:
    with pytest.raises(OnnxImportError, match="NonZero") as error:
        imported(model([node("NonZero", "x")], {"x": [1, 2]}))
    assert "end the model in front of NonZero" in str(error.value.fix)


@pytest.mark.parametrize("name", ["QAttention", "DynamicQuantizeMatMul", "MatMulBnb4"])
def test_a_quantized_format_of_onnxruntime_is_refused_with_the_two_that_are_read(name: str) -> None:
    own = helper.make_node(name, ["x"], ["y"], name="fc", domain="com.microsoft")
    with pytest.raises(OnnxImportError, match=f"com.microsoft::{name} \\(node 'fc'\\)") as error:
        imported(model([own], {"x": [1, 2]}))
    assert "give the float model" in str(error.value.fix)
    assert "QuantFormat.QDQ" in str(error.value.fix)


def test_a_fused_operator_that_is_not_read_asks_for_the_model_before_it_was_optimized() -> None:
    own = helper.make_node("NhwcFusedConv", ["x"], ["y"], domain="com.microsoft")
    with pytest.raises(OnnxImportError, match="before onnxruntime's optimizer fused NhwcFusedConv"):
        imported(model([own], {"x": [1, 2]}))


def test_an_operator_of_an_older_opset_is_told_from_which_one_it_is_read() -> None:
    old = model([helper.make_node("BitShift", ["x", "x"], ["y"], direction="LEFT")], {"x": [1, 2]})
    old.opset_import[0].version = 10
    with pytest.raises(OnnxImportError, match="BitShift is read from opset 11 on"):
        imported(old)


def test_several_bad_attributes_are_reported_together() -> None:
    proto = model(
        [
            node("Conv", "x w", "a", auto_pad="ODD", name="one"),
            node("Conv", "x w", "b", auto_pad="EVEN", name="two"),
            node("Add", "a b"),
        ],
        {"x": [1, 1, 4, 4]},
        {"w": np.ones((1, 1, 1, 1), "float32")},
    )
    with pytest.raises(OnnxImportError) as error:
        imported(proto)
    assert "'one'" in str(error.value)
    assert "'two'" in str(error.value)


def test_types_that_do_not_fit_name_the_onnx_node() -> None:
    proto = model([node("Add", "x w", name="bad_add")], {"x": [2]}, {"w": np.ones(3, "float32")})
    with pytest.raises(OnnxImportError, match="bad_add"):
        imported(proto)


def test_a_tensor_nobody_computes_is_named() -> None:
    with pytest.raises(OnnxImportError, match="'ghost'"):
        imported(model([node("Relu", "ghost")], {"x": [2]}))


def test_an_opset_newer_than_the_converters_is_refused() -> None:
    with pytest.raises(OnnxImportError, match=f"opset {NEWEST_OPSET + 1} is not supported"):
        imported(model([node("Relu", "x")], {"x": [2]}, opset=NEWEST_OPSET + 1))


def test_local_functions_are_inlined() -> None:
    body = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    proto = model([call], {"x": [2]})
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    mod, _ = imported(proto)
    assert op_names(mod) == ["add"]


def test_several_outputs_become_a_tuple_and_an_input_returned_is_copied() -> None:
    mod, _ = imported(model([node("Relu", "x")], {"x": [2]}, outputs=("y", "x")))
    assert not isinstance(mod["main"].body.fields[1], Var)
    found = evaluate(mod, {"x": np.array([-1, 2], "float32")})
    np.testing.assert_array_equal(found[0], [0, 2])
    np.testing.assert_array_equal(found[1], [-1, 2])


SHARED_MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
    "efficientnet_lite0",
)


@pytest.mark.shared
@pytest.mark.parametrize("name", SHARED_MODELS)
def test_trained_models_compute_what_onnxruntime_computes(shared_data: Path, name: str) -> None:
    path = shared_data / f"{name}.onnx"
    mod, params = load(path)
    (shape,) = [p.checked_type.shape for p in mod["main"].params if p.name_hint == "input"]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    (expected,) = OrtExecutor(onnx.load(path)).run({"input": x})
    (found,) = evaluate(mod, {"input": x, **params})
    # Sums run in another order; logits are compared on the scale of the largest.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_nodes_may_stand_in_any_order() -> None:
    nodes = [
        node("Relu", "u", name="last"),
        node("If", "yes", "u", name="branch", then_branch=_branch("t"), else_branch=_branch("t")),
        node("Neg", "x", "t", name="first"),
    ]
    proto = model(nodes, {"x": [1, 3]}, {"yes": np.array(True)})
    mod, _ = imported(proto)
    assert op_names(mod) == ["negative", "nn.relu"]
    (_, relu) = (n for n in post_order(mod["main"].body) if isinstance(n, Call))
    assert "last" in str(relu.span)
    x = np.array([[1, -2, 0]], np.float32)
    assert evaluate(mod, {"x": x})[0].tolist() == [[0, 2, 0]]


def _branch(outer: str) -> onnx.GraphProto:
    """Reads ``outer`` from outside; its nodes are not sorted either."""
    nodes = [node("Identity", "inner", "out"), node("Identity", outer, "inner")]
    return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info("out", FLOAT, None)])


def test_nodes_in_a_circle_are_an_error_that_names_them() -> None:
    nodes = [
        node("Add", "x b", "y", name="reader"),
        node("Relu", "b", "a", name="p"),
        node("Neg", "a", "b", name="q"),
    ]
    with pytest.raises(OnnxImportError, match="circle") as caught:
        imported(model(nodes, {"x": [1, 3]}))
    assert "'p', 'q'" in str(caught.value) or "'q', 'p'" in str(caught.value)
    assert "reader" not in str(caught.value)


def test_a_tensor_that_no_node_computes_is_an_error() -> None:
    with pytest.raises(OnnxImportError, match="reads tensor 'nowhere', which no node computes"):
        imported(model([node("Relu", "nowhere")], {"x": [1, 3]}))


def test_a_size_of_minus_one_is_an_unknown_size() -> None:
    proto = model([node("Relu", "x")], {"x": [-1, 3, -1]})
    for kwargs in ({"dims": {"x:2": 5}}, {"input_shapes": {"x": (1, 3, 5)}}):
        assert imported(proto, **kwargs)[0]["main"].params[0].checked_type == TensorType((1, 3, 5))
    with pytest.raises(OnnxImportError, match="--dim x:2="):
        imported(proto)


@pytest.mark.parametrize("opset", range(1, NEWEST_OPSET + 1))
def test_every_opset_up_to_the_newest_is_taken(opset: int) -> None:
    nodes = [node("Conv", "x w", "t"), node("Relu", "t")]
    weight = np.ones((2, 3, 1, 1), np.float32)
    proto = model(nodes, {"x": [1, 3, 2, 2]}, {"w": weight}, opset=opset)
    assert op_names(imported(proto)[0]) == ["nn.conv2d", "nn.relu"]


REVIEWED = {
    "Cast": {"round_mode"},  # of float8e8m0, which is not supported
    "CastLike": {"round_mode"},
    "DequantizeLinear": {"output_dtype"},
    "QuantizeLinear": {"precision"},  # of the division; float32 for what is supported
    "Range": {"stash_type"},  # of float16
    "SpaceToDepth": {"mode"},
}
"""Attributes that opsets from 22 on added to operators of the importer's table."""


def test_what_newer_opsets_add_to_an_operator_has_been_looked_at() -> None:
    """A newer onnx that adds an attribute or an input to an operator fails here: a converter may
    have to read it, and until then an old meaning would be taken for the new one."""
    schemas: dict[str, dict[int, onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, {})[schema.since_version] = schema
    unknown: dict[str, set[str]] = {}
    for name in supported_operators():
        held = schemas.get(name, {})
        newest = held[max(held)] if held else None
        before = [held[since] for since in sorted(held) if since <= 21]
        if newest is None or not before:
            continue
        old = {*before[-1].attributes, *(i.name for i in before[-1].inputs)}
        new = {*newest.attributes, *(i.name for i in newest.inputs)} - old
        if new - REVIEWED.get(name, set()):
            unknown[name] = new - REVIEWED.get(name, set())
    assert unknown == {}


@pytest.mark.parametrize("inputs", ["s zero", "zero s"])
def test_nothing_is_left_of_a_product_with_zeros(inputs: str) -> None:
    nodes = [node("ReduceSum", "x", "s", axes=[1]), node("Mul", inputs, "z"), node("Add", "x z")]
    proto = model(nodes, {"x": [2, 3]}, {"zero": np.zeros(1, np.float32)}, opset=11)
    mod, _ = imported(proto)
    assert "multiply" not in op_names(mod)
    assert_same_as_onnxruntime(proto, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
