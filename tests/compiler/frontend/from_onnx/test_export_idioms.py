"""What exporters write around the arithmetic goes away before quantization."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import compiler
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.quantize import prerequisite_optimize
from tests.each import each

node = helper.make_node


def channels_last_export() -> onnx.ModelProto:
    """Two convolutions between transposes, padding of its own, a division, a computed reshape."""
    rng = np.random.default_rng(0)
    arrays = {
        "w1": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((4, 4, 1, 1)).astype(np.float32),
        "w3": rng.standard_normal((64, 5)).astype(np.float32),
        "b": rng.standard_normal(4).astype(np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "two": np.float32(2),
        "zero": np.int64(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
    }
    first, last = [0, 3, 1, 2], [0, 2, 3, 1]
    nodes = [
        node("Transpose", ["x"], ["t0"], perm=first),
        node("Pad", ["t0", "pads"], ["p"]),
        node("Conv", ["p", "w1"], ["c1"], strides=[2, 2]),
        node("Transpose", ["c1"], ["n1"], perm=last),
        node("Add", ["n1", "b"], ["a1"]),
        node("Relu", ["a1"], ["r1"]),
        node("Transpose", ["r1"], ["t1"], perm=first),
        node("Conv", ["t1", "w2"], ["c2"]),
        node("Transpose", ["c2"], ["n2"], perm=last),
        node("Add", ["n2", "b"], ["a2"]),
        node("Div", ["a2", "two"], ["d"]),
        node("Shape", ["d"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axes"], ["u"]),
        node("Concat", ["u", "rest"], ["shape"], axis=0),
        node("Reshape", ["d", "shape"], ["f"]),
        node("MatMul", ["f", "w3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8, 8, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def test_transposes_padding_division_and_shape_arithmetic_are_gone() -> None:
    proto = channels_last_export().SerializeToString()
    mod = prerequisite_optimize(*load(proto), 3, simplify=True)
    calls = [n.op for n in post_order(mod["main"]) if isinstance(n, Call)]
    assert [op.name for op in calls if isinstance(op, Op)] == [
        "transpose",  # of the input
        "nn.conv2d",
        "add",
        "nn.relu",
        "nn.conv2d",
        "add",
        "multiply",
        "transpose",  # in front of the flattening
        "reshape",
        "nn.dense",
    ]
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 3)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(proto).run(None, {"x": x})
    # onnxruntime sums in another order than numpy.
    np.testing.assert_allclose(compiler.evaluate(mod, [x])[0], want, rtol=1e-4, atol=1e-5)


def test_a_classifier_of_scikit_learn_gives_labels_and_probabilities() -> None:
    """Its scaler and its labels are operators of ai.onnx.ml."""
    rng = np.random.default_rng(0)
    own = "ai.onnx.ml"
    arrays = {
        "w": rng.standard_normal((3, 4)).astype(np.float32),
        "classes": np.array([10, 20, 30, 40]),
        "flat": np.array([-1]),
    }
    nodes = [
        node("Scaler", ["x"], ["s"], domain=own, offset=[0.5, 0.0, -1.0], scale=[2.0, 1.0, 0.5]),
        node("MatMul", ["s", "w"], ["z"]),
        node("Softmax", ["z"], ["p"]),
        node("ArgMax", ["p"], ["best"], axis=1),
        node("ArrayFeatureExtractor", ["classes", "best"], ["label"], domain=own),
        node("Reshape", ["label", "flat"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [5, 3])],
        [
            helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [5]),
            helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [5, 4]),
        ],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid(own, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    x = rng.standard_normal((5, 3)).astype(np.float32)
    labels, chances = onnxruntime.InferenceSession(proto).run(None, {"x": x})
    mod, params = load(proto)
    found = compiler.evaluate(compiler.quantize.bind_params(mod, params), {"x": x})
    np.testing.assert_array_equal(found[0], labels)
    np.testing.assert_allclose(found[1], chances, rtol=1e-5)


def slice_assignment(rows: int, columns: int) -> onnx.ModelProto:
    """``x[1:, 1:] = y`` as torch writes it: a place for every element, computed from numbers."""
    shape = np.array([rows - 1, columns - 1])
    arrays = {
        "down": np.arange(1, rows)[:, None],
        "right": np.arange(1, columns)[None],
        "shape": shape,
        "last": np.array([-1]),
    }
    nodes = [
        node("Expand", ["down", "shape"], ["d"]),
        node("Expand", ["right", "shape"], ["r"]),
        node("Unsqueeze", ["d", "last"], ["du"]),
        node("Unsqueeze", ["r", "last"], ["ru"]),
        node("Concat", ["du", "ru"], ["at"], axis=-1),
        node("ScatterND", ["x", "at", "y"], ["z"]),
    ]
    value = functools.partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", shape=[rows, columns]), value("y", shape=shape.tolist())],
        [value("z", shape=[rows, columns])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_assignment_to_many_places_is_no_scatter() -> None:
    proto = slice_assignment(70, 90)
    mod, params = load(proto.SerializeToString())
    calls = [n.op for n in post_order(mod["main"]) if isinstance(n, Call)]
    assert "scatter_nd" not in {op.name for op in calls if isinstance(op, Op)}
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(0, 1, (70, 90)), "y": rng.normal(0, 1, (69, 89))}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (wanted,) = session.run(None, given)
    (found,) = compiler.evaluate(mod, {**given, **params})
    np.testing.assert_array_equal(found, wanted)


Arrays = dict[str, Any]


def of_one(
    op: str, given: Arrays, stored: Arrays, attributes: Arrays, inputs: list[str] | None = None
) -> tuple[IRModule, NDArray[Any], NDArray[Any]]:
    """A model of one operator as imported, what it gives and what onnxruntime does.

    Args:
        inputs: of the operator; None is those given, then those stored, "" for one left out.
    """
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node(op, inputs or [*given, *stored], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in given.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items() if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    mod, params = load(model.SerializeToString())
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    (found,) = compiler.evaluate(mod, {**given, **params})
    return mod, found, wanted


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", ["", "hann"])
def test_spectra_of_frames_are_a_convolution(window: str, onesided: int) -> None:
    given = {"x": np.random.default_rng(0).normal(size=(2, 60, 1)).astype("f4")}
    stored = {"step": np.array(5), "hann": np.float32(np.hanning(16)), "length": np.array(16)}
    inputs = ["x", "step", window, "length"]
    mod, found, wanted = of_one("STFT", given, stored, {"onesided": onesided}, inputs)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert "nn.conv2d" in str(mod)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("op", "indices", "attributes"),
    [
        ("Gather", [-1, 0, -4], {"axis": 0}),
        ("GatherElements", np.tile([[[-1], [2]]], (4, 1, 6)), {"axis": 1}),
        ("GatherND", [[-1], [0]], {}),
        ("GatherND", [[-1, -2], [0, -5]], {}),
        ("GatherND", np.tile([[-1], [1]], (4, 1, 1)), {"batch_dims": 1}),
        ("ScatterElements", np.tile([[[-1], [2]]], (4, 1, 6)), {"axis": 1}),
        ("ScatterND", [[-1, -2], [0, -5]], {}),
        ("ScatterND", [[-1, -2], [0, -5]], {"reduction": "max"}),
        ("ScatterND", [[-1, -2], [3, -2]], {"reduction": "mul"}),
        *(
            ("ScatterElements", np.tile([[[-1], [2], [4]]], (4, 1, 6)), {"axis": 1, "reduction": r})
            for r in ("add", "mul", "max", "min")
        ),
    ],
)
def test_indices_below_zero_count_from_the_end(
    op: str, indices: Any, attributes: Arrays, stored: bool
) -> None:
    rng = np.random.default_rng(0)
    places = np.array(indices)
    shape = places.shape if op == "ScatterElements" else (2, 6)
    known = {"updates": rng.normal(size=shape).astype("f4")} if "Scatter" in op else {}
    given = {"x": rng.normal(size=(4, 5, 6)).astype("f4")}
    inputs = ["x", "places", *known]
    (known if stored else given)["places"] = places
    _, found, wanted = of_one(op, given, known, attributes, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_scatter_elements_at_stored_indices_accepts_rows_without_elements() -> None:
    empty = np.zeros((3, 0), "f4")
    stored = {"places": np.zeros((3, 0), "i8"), "updates": empty}
    _, found, wanted = of_one("ScatterElements", {"x": empty}, stored, {"axis": 0})
    assert found.shape == wanted.shape


def _lstm_that_clips() -> tuple[Arrays, Arrays]:
    rng = np.random.default_rng(2)
    shapes = {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24)}
    return {"x": rng.normal(size=(4, 1, 2)).astype("f4")}, {
        name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()
    }


LINE = {"x": np.arange(20, dtype="f4").reshape(4, 5)}
IMAGE = {"x": np.arange(60, dtype="f4").reshape(1, 1, 6, 10)}
GRID = {"grid": np.random.default_rng(1).uniform(-1.4, 1.4, (1, 3, 4, 2)).astype("f4")}


@pytest.mark.parametrize(
    ("op", "given", "stored", "attributes"),
    [
        # Backwards to the end, from in front of the first element, and with an end of int64.
        ("Slice", LINE, {"a": [-1], "b": [2**63 - 1], "c": [1], "d": [-2]}, {}),
        ("Slice", LINE, {"a": [-9], "b": [2**31 - 1], "c": [0], "d": [-1]}, {}),
        ("Slice", LINE, {"a": [3, -7], "b": [-(2**31), 4], "c": [0, -1], "d": [-2, 3]}, {}),
        # 10 times 2.6 and 6 times 1.3 of float32, and places between two elements.
        ("Resize", IMAGE, {"": [], "s": np.float32([1, 1, 1.3, 2.6])}, {"mode": "linear"}),
        ("Resize", IMAGE, {"": [], "s": np.float32([1, 1, 0.6, 0.7])}, {"nearest_mode": "floor"}),
        ("Resize", IMAGE, {"": [], "s": np.float32([1, 1, 1.3, 2.6])}, {"nearest_mode": "ceil"}),
        ("GridSample", IMAGE, GRID, {"mode": "bicubic", "padding_mode": "border"}),
        ("ReduceSumSquare", LINE, {}, {"noop_with_empty_axes": 1}),
        ("GlobalLpPool", IMAGE, {}, {}),
        ("GlobalLpPool", IMAGE, {}, {"p": 1}),
        # Steps larger than the kernel enlarge no output.
        (
            "ConvTranspose",
            IMAGE,
            {"w": np.ones((1, 1, 2, 3), "f4")},
            {"auto_pad": "SAME_UPPER", "strides": [3, 2]},
        ),
        ("LSTM", *_lstm_that_clips(), {"hidden_size": 3, "clip": 0.4}),
    ],
)
def test_corners_of_operators_are_those_of_onnxruntime(
    op: str, given: Arrays, stored: Arrays, attributes: Arrays
) -> None:
    _, found, wanted = of_one(op, given, stored, attributes)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_topk_of_the_first_opsets_has_its_number_as_an_attribute() -> None:
    text = """
    <ir_version: 4, opset_import: ["" : 9]>
    m (float[2, 5] x) => (float[2, 3] values, int64[2, 3] places)
    { values, places = TopK <k = 3> (x) }
    """
    model = onnx.parser.parse_model(text).SerializeToString()
    mod, params = load(model)
    x = np.random.default_rng(0).normal(size=(2, 5)).astype("f4")
    wanted = onnxruntime.InferenceSession(model).run(None, {"x": x})
    for found, right in each(zip(compiler.evaluate(mod, {"x": x, **params}), wanted, strict=True)):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 1, 1, 1]},
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 2, 0, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER", "storage_order": 1},
    ],
)
def test_the_place_of_a_maximum_is_the_first_of_equals_and_never_padding(window: Arrays) -> None:
    """The least float has nothing below that could stand for padding."""
    rng = np.random.default_rng(0)
    given = {"x": rng.integers(0, 3, (2, 3, 7, 8)).astype("f4") + np.float32(-3.4028235e38)}
    given["x"][0] = rng.integers(-3, 0, (3, 7, 8))
    value = functools.partial(helper.make_tensor_value_info, shape=None)
    graph = helper.make_graph(
        [node("MaxPool", ["x"], ["y", "i"], **window)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3, 7, 8))],
        [value("y", onnx.TensorProto.FLOAT), value("i", onnx.TensorProto.INT64)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    mod, params = load(model.SerializeToString())
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    for found, want in each(zip(compiler.evaluate(mod, {**given, **params}), wanted, strict=True)):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("shape", [None, (2, 3, 9, 11)])
def test_unpooled_maxima_are_counted_in_the_result(shape: tuple[int, ...] | None) -> None:
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(2, 3, 4, 5)).astype("f4")}
    given["i"] = rng.permutation(2 * 3 * 8 * 10)[:120].reshape(2, 3, 4, 5)
    stored = {} if shape is None else {"s": np.array(shape)}
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    _, found, wanted = of_one("MaxUnpool", given, stored, attributes)
    np.testing.assert_array_equal(found, wanted)
