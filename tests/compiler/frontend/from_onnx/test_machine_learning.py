"""ai.onnx.ml: linear models against onnxruntime, and as integers; a forest stays in float."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import compiler
import qsearch
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.frontend.from_onnx.load import load
from qsearch.cli.main import run

FEATURES = 6
ML = "ai.onnx.ml"
Array = NDArray[Any]


def model(op: str, kinds: Sequence[int], opset: int = 3, **attributes: Any) -> onnx.ModelProto:
    names = [f"y{k}" for k in range(len(kinds))]
    node = helper.make_node(op, ["x"], names, domain=ML, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    outputs = [helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, opset)]
    graph = helper.make_graph([node], "g", [x], outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def samples(rng: np.random.Generator, count: int) -> Array:
    rows = rng.normal(size=(count, FEATURES)) * 10.0 ** (np.arange(FEATURES) - 2)
    return rows.astype(np.float32)


def both(proto: onnx.ModelProto, x: Array) -> tuple[list[Array], list[Array]]:
    """What onnxruntime and the import give."""
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    mod, _ = load(proto.SerializeToString(), input_shapes={"x": x.shape})
    return wanted, compiler.evaluate(mod, {"x": x})


def test_a_linear_classifier_scales_features_of_unlike_ranges(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(3, FEATURES)) / 10.0 ** (np.arange(FEATURES) - 2)
    proto = model(
        "LinearClassifier",
        [TensorProto.INT64, TensorProto.FLOAT],
        coefficients=[float(v) for v in weight.reshape(-1)],
        intercepts=[0.1, 0.2, -0.1],
        classlabels_ints=[1, 2, 4],
        post_transform="SOFTMAX",
    )
    x = samples(rng, 300)
    wanted, got = both(proto, x)
    np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_allclose(got[1], wanted[1], atol=1e-5)
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", x=x)
    module = qsearch.quantize(tmp_path / "m.onnx", calib=str(tmp_path / "calib.npz"))
    assert "quantized_main" in module.functions
    answers = np.concatenate([module.run({"x": row})[1] for row in x[:, None]])
    assert np.abs(answers - wanted[1]).max() < 0.05


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@pytest.mark.parametrize("opset", [2, 4])
@pytest.mark.parametrize("kind", ["int64s", "floats"])
def test_a_label_encoder_is_a_table(kind: str, opset: int) -> None:
    keys, values = [7, -3, 40, 8], [2, 5, 9, -4]
    whole = kind == "int64s"
    default: dict[str, Any] = {"default_int64": 77} if whole else {"default_float": 0.25}
    proto = model(
        "LabelEncoder",
        [TensorProto.INT64 if whole else TensorProto.FLOAT],
        opset,
        keys_int64s=keys,
        **{f"values_{kind}": values if whole else [float(v) for v in values]},
        **default,
    )
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    x = np.array([[7, -3, 40, 8, 0, 9], [-4, 41, 39, 10**9, -(10**9), 7]])
    wanted, got = both(proto, x)
    np.testing.assert_array_equal(got[0], wanted[0])


def test_a_label_encoder_of_texts_or_of_far_keys_is_refused() -> None:
    texts: dict[str, Any] = {"keys_strings": ["a"], "values_int64s": [1]}
    far: dict[str, Any] = {"keys_int64s": [0, 1 << 40], "values_int64s": [1, 2]}
    held = numpy_helper.from_array(np.array([1.5, 2.0], np.float32))
    halves: dict[str, Any] = {"keys_tensor": held, "values_int64s": [1, 2]}
    for given, what in ((texts, "whole numbers"), (far, "table"), (halves, "whole numbers")):
        with pytest.raises(OnnxImportError, match=what):
            load(model("LabelEncoder", [TensorProto.INT64], **given).SerializeToString())


def forest(x: str, y: str) -> onnx.NodeProto:
    """Compare column 1 with 0.5: 1 or 2."""
    return helper.make_node(
        "TreeEnsembleRegressor",
        [x],
        [y],
        "trees",
        domain=ML,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[1.0, 2.0],
        n_targets=1,
    )


def test_a_forest_behind_a_layer_stays_in_float_and_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "layer"), forest("h", "y")]
    held = {"w": rng.normal(size=(FEATURES, FEATURES)).astype(np.float32)}
    x = rng.normal(size=(64, FEATURES)).astype(np.float32)
    (wanted,), module = pipeline(nodes, {"y": TensorProto.FLOAT}, held, tmp_path, x)
    parts = qsearch.doctor(tmp_path / "m.onnx").cut
    assert parts is not None
    assert parts.last == ("layer",)
    assert "TreeEnsembleRegressor 'trees'" in str(parts)
    got = np.concatenate([module.run({"x": row})[0] for row in x[:, None]])
    assert (got == wanted).mean() > 0.95


def test_a_file_that_is_only_a_forest_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph([forest("x", "y")], "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", x=np.zeros((4, FEATURES), np.float32))
    words = ["compile", "--model", str(tmp_path / "m.onnx"), "--calib", str(tmp_path / "calib.npz")]
    assert run([*words, "-o", str(tmp_path / "m.qmod")]) == 2
    said = capfd.readouterr().err
    assert "TreeEnsembleRegressor has no integer form" in said
    assert "no cut leaves a product" in said


def test_maps_of_chances_become_a_tensor() -> None:
    kinds = [TensorProto.INT64, TensorProto.FLOAT]
    proto = model(
        "LinearClassifier",
        kinds,
        coefficients=[float(v) for v in np.random.default_rng(4).normal(size=3 * FEATURES)],
        intercepts=[0.0, 0.1, 0.2],
        classlabels_ints=[0, 1, 2],
    )
    zipped = onnx.ModelProto.FromString(proto.SerializeToString())
    node = helper.make_node("ZipMap", ["y1"], ["p"], domain=ML, classlabels_int64s=[0, 1, 2])
    zipped.graph.node.append(node)
    zipped.graph.output[1].name = "p"
    x = samples(np.random.default_rng(5), 10)
    _, got = both(proto, x)
    mod, _ = load(zipped.SerializeToString(), input_shapes={"x": x.shape})
    np.testing.assert_array_equal(compiler.evaluate(mod, {"x": x})[1], got[1])


def test_labels_that_are_texts_become_their_places(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["cat", "dog"]
    kinds = [TensorProto.STRING, TensorProto.FLOAT]
    rng = np.random.default_rng(3)
    proto = model(
        "LinearClassifier",
        kinds,
        coefficients=rng.normal(size=12).tolist(),
        intercepts=[0.0, 0.5],
        classlabels_strings=texts,
    )
    x = samples(rng, 20)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    mod, _ = load(proto.SerializeToString(), input_shapes={"x": x.shape})
    label, scores = compiler.evaluate(mod, {"x": x})
    assert [texts[place] for place in label] == wanted[0].tolist()
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5, atol=1e-5)
    declared_interface(proto.SerializeToString())
    assert "output 'y0' is a place among the labels 'cat, dog'" in caplog.text


@pytest.mark.parametrize("pick", ["ArrayFeatureExtractor", "Gather"])
def test_texts_that_are_picked_from_a_constant_become_their_places(
    pick: str, caplog: pytest.LogCaptureFixture
) -> None:
    texts = np.array(["a", "b", "c"], object)
    domain = ML if pick == "ArrayFeatureExtractor" else ""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        helper.make_node(pick, ["texts", "place"], ["picked"], domain=domain),
        helper.make_node("Reshape", ["picked", "shape"], ["shaped"]),
        helper.make_node("Cast", ["shaped"], ["label"], to=TensorProto.STRING),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 3))]
    outputs = [helper.make_tensor_value_info("label", TensorProto.STRING, (5,))]
    constants = [
        numpy_helper.from_array(texts, "texts"),
        numpy_helper.from_array(np.array([-1]), "shape"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    mod, params = load(proto.SerializeToString())
    (label,) = compiler.evaluate(mod, {"x": x, **params})
    assert texts[label].tolist() == wanted.tolist()
    declared_interface(proto.SerializeToString())
    assert "output 'label' is a place among the labels 'a, b, c'" in caplog.text
    nodes[-1].attribute[0].i = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(OnnxImportError, match="read as numbers"):
        load(proto.SerializeToString())


# ---- what stands around the learned part -------------------------------------------------------


def pipeline(
    nodes: Sequence[onnx.NodeProto],
    outputs: dict[str, int],
    constants: dict[str, Array],
    at: Path,
    x: Array,
) -> tuple[list[Array], Any]:
    """What onnxruntime gives for all rows, and the quantized module of these nodes."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    taken = [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph(list(nodes), "g", [given], taken, held)
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(proto, at / "m.onnx")
    np.savez(at / "calib.npz", x=x)
    module = qsearch.quantize(at / "m.onnx", calib=str(at / "calib.npz"))
    module.save(at / "m.qmod")
    assert qsearch.verify(at / "m.qmod").proved
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x}), module


def linear(rng: np.random.Generator, x: str, label: str, scores: str) -> onnx.NodeProto:
    return helper.make_node(
        "LinearClassifier",
        [x],
        [label, scores],
        domain=ML,
        coefficients=[float(v) for v in rng.normal(size=3 * FEATURES)],
        intercepts=[0.1, 0.0, -0.1],
        classlabels_ints=[3, 7, 9],
        post_transform="SOFTMAX",
    )


def test_labels_that_pass_through_floats_stay_labels(tmp_path: Path) -> None:
    """skl2onnx writes a chosen label as float, moves it and makes it an integer again."""
    rng = np.random.default_rng(3)
    nodes = [
        linear(rng, "x", "unused", "scores"),
        helper.make_node("ArgMax", ["scores"], ["place"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["labels", "place"], ["found"], domain=ML),
        helper.make_node("Cast", ["found"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["real", "shape"], ["row"]),
        helper.make_node("Cast", ["row"], ["label"], to=TensorProto.INT64),
    ]
    held = {"labels": np.array([3, 70_000, 123_457], np.int32), "shape": np.array([-1])}
    x = rng.normal(size=(64, FEATURES)).astype(np.float32)
    (wanted,), module = pipeline(nodes, {"label": TensorProto.INT64}, held, tmp_path, x)
    found = np.concatenate([module.run({"x": row})[0] for row in x[:, None]])
    assert set(found) <= set(held["labels"])
    assert (found == wanted).mean() > 0.95


def test_what_fills_gaps_stays_in_front_of_a_linear_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node(
            "Imputer",
            ["x"],
            ["filled"],
            domain=ML,
            imputed_value_floats=[0.5] * FEATURES,
            replaced_value_float=float("nan"),
        ),
        linear(rng, "filled", "label", "scores"),
    ]
    x = rng.normal(size=(64, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    outputs = {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}
    wanted, module = pipeline(nodes, outputs, {}, tmp_path, x)
    found = [module.run({"x": row}) for row in x[:, None]]
    assert (np.concatenate([one[0] for one in found]) == wanted[0]).mean() > 0.95
    np.testing.assert_allclose(np.concatenate([one[1] for one in found]), wanted[1], atol=0.05)
