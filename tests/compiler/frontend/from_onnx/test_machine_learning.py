"""ai.onnx.ml: trees and linear models against onnxruntime, and as integers."""

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

FEATURES, DEPTH, ML = 6, 5, "ai.onnx.ml"
Array = NDArray[Any]


def forest(rng: np.random.Generator, trees: int, modes: Sequence[str] = ("LEQ",)) -> dict[str, Any]:
    """Attributes of full trees over features of very unlike ranges; leaves are numbered through."""
    fields = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    found: dict[str, list[Any]] = {f"nodes_{name}": [] for name in fields}
    inner = (1 << DEPTH) - 1
    for tree in range(trees):
        for node in range(2 * inner + 1):
            feature = int(rng.integers(FEATURES))
            limit = float(np.float32(rng.normal() * 10.0 ** (feature - 2)))
            mode = f"BRANCH_{rng.choice(modes)}"
            row = (tree, node, feature, limit, mode, 2 * node + 1, 2 * node + 2)
            if node >= inner:
                row = (tree, node, 0, 0.0, "LEAF", 0, 0)
            for column, value in zip(found.values(), row, strict=True):
                column.append(value)
    return found


def leaves(
    found: dict[str, Any], what: str, columns: Sequence[int], values: Array
) -> dict[str, Any]:
    at = [k for k, mode in enumerate(found["nodes_modes"]) if mode == "LEAF"]
    ids = [
        [found[f"nodes_{kind}"][k] for k in at for _ in columns] for kind in ("treeids", "nodeids")
    ]
    return {
        f"{what}_treeids": ids[0],
        f"{what}_nodeids": ids[1],
        f"{what}_ids": list(columns) * len(at),
        f"{what}_weights": [float(v) for v in np.resize(values, len(at) * len(columns))],
    }


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


@pytest.mark.parametrize("modes", [("LEQ",), ("LT", "GT"), ("GTE", "LEQ", "EQ", "NEQ")])
def test_trees_reach_the_leaves_that_onnxruntime_reaches(modes: Sequence[str]) -> None:
    rng = np.random.default_rng(1)
    found = forest(rng, 1, modes)
    count = found["nodes_modes"].count("LEAF")
    proto = model(
        "TreeEnsembleRegressor",
        [TensorProto.FLOAT],
        **found,
        **leaves(found, "target", [0], np.arange(count)),
        n_targets=1,
    )
    x = samples(rng, 4000)
    at = np.array(found["nodes_values"])[0]
    x[:50, found["nodes_featureids"][0]] = np.float32(at)  # equal to a limit
    (wanted,), (got,) = both(proto, x)
    assert (np.abs(wanted - got) < 0.5).mean() >= 0.999
    assert (np.abs(wanted - got)[:50] < 0.5).all()


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("columns", [[0], [1], [0, 1, 2]])
def test_forests_give_labels_and_chances_and_are_integers(
    columns: list[int], how: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    found = forest(rng, 20)
    labels = [3, 7, 9][: max(2, len(columns))]
    votes = rng.normal(size=1000)
    proto = model(
        "TreeEnsembleClassifier",
        [TensorProto.INT64, TensorProto.FLOAT],
        **found,
        **leaves(found, "class", columns, np.abs(votes) / 40 if how == "NONE" else votes / 10),
        classlabels_int64s=labels,
        post_transform=how,
    )
    x = samples(rng, 200)
    wanted, got = both(proto, x)
    assert (wanted[0] == got[0]).mean() >= 0.99
    assert np.quantile(np.abs(wanted[1] - got[1]).max(axis=1), 0.95) < 1e-3
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", x=x)
    module = qsearch.quantize(tmp_path / "m.onnx", calib=str(tmp_path / "calib.npz"))
    assert "quantized_main" in module.functions
    for row, label, chances in zip(x[:8, None], *got):
        answer = module.run({"x": row})
        assert answer[0] == label
        np.testing.assert_array_equal(answer[1][0], chances)


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


def vectors(rng: np.random.Generator, kind: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Attributes of a support vector machine of these classes, or of none."""
    count, pairs = sum(sizes), len(sizes) * (len(sizes) - 1) // 2
    held = rng.normal(size=(count, FEATURES)) * 10.0 ** (np.arange(FEATURES) - 2.0)
    weight = rng.normal(size=max(len(sizes) - 1, 1) * count)
    return {
        "kernel_type": kind,
        "kernel_params": [2e-7 if kind == "RBF" else 5e-8, 0.5, 2.0],
        "support_vectors": [float(v) for v in held.reshape(-1)],
        "coefficients": [float(v) for v in weight],
        "rho": [float(v) for v in rng.normal(size=max(pairs, 1))],
    }


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_a_support_vector_regressor_gives_what_onnxruntime_gives(kind: str, one_class: int) -> None:
    rng = np.random.default_rng(6)
    given = vectors(rng, kind, [9])
    proto = model("SVMRegressor", [TensorProto.FLOAT], **given, n_supports=9, one_class=one_class)
    wanted, got = both(proto, samples(rng, 100))
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("sizes", [(4, 3), (2, 5, 3), (1, 2, 3, 4)], ids=len)
def test_a_support_vector_classifier_answers_by_pairs_and_is_integral(
    kind: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(7)
    proto = model(
        "SVMClassifier",
        [TensorProto.INT64, TensorProto.FLOAT],
        **vectors(rng, kind, sizes),
        vectors_per_class=sizes,
        classlabels_ints=[3, 5, 8, 9][: len(sizes)],
    )
    x = samples(rng, 200)
    wanted, got = both(proto, x)
    assert (wanted[0] == got[0]).mean() >= 0.99
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-4, atol=1e-3)
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", x=x)
    module = qsearch.quantize(tmp_path / "m.onnx", calib=str(tmp_path / "calib.npz"))
    assert "quantized_main" in module.functions
    labels = np.concatenate([module.run({"x": row})[0] for row in x[:100, None]])
    assert (labels == wanted[0][:100]).mean() >= 0.85


@pytest.mark.parametrize("kind", KERNELS)
def test_probabilities_of_two_classes_are_those_of_onnxruntime(kind: str) -> None:
    """Which finds them step by step, to 0.004."""
    given = vectors(np.random.default_rng(8), kind, (4, 3))
    given |= {"vectors_per_class": [4, 3], "prob_a": [-0.7], "prob_b": [0.3]}
    kinds = [TensorProto.INT64, TensorProto.FLOAT]
    proto = model("SVMClassifier", kinds, **given, classlabels_ints=[4, 2])
    x = samples(np.random.default_rng(9), 200)
    wanted, got = both(proto, x)
    assert (wanted[0] == got[0]).mean() >= 0.99
    np.testing.assert_allclose(got[1], wanted[1], atol=0.005)
    found = qsearch.quantize(proto, x).run([x])[1]
    assert np.abs(found - wanted[1]).mean() < 0.05


def test_probabilities_of_more_classes_are_refused_with_what_to_do() -> None:
    given = vectors(np.random.default_rng(8), "RBF", (2, 2, 2))
    given |= {"vectors_per_class": [2, 2, 2], "prob_a": [1.0] * 3, "prob_b": [0.0] * 3}
    kinds = [TensorProto.INT64, TensorProto.FLOAT]
    proto = model("SVMClassifier", kinds, **given, classlabels_ints=[0, 1, 2])
    with pytest.raises(OnnxImportError, match="probabilities") as caught:
        load(proto.SerializeToString())
    assert "probability=False" in str(caught.value.fix)


def test_probabilities_without_vectors_are_refused() -> None:
    numbers = {"coefficients": [1.0] * 12, "rho": [0.5], "prob_a": [1.0], "prob_b": [0.0]}
    kinds = [TensorProto.INT64, TensorProto.FLOAT]
    proto = model("SVMClassifier", kinds, **numbers, classlabels_ints=[0, 1])
    with pytest.raises(OnnxImportError, match="probabilities"):
        load(proto.SerializeToString())


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


def test_distances_of_columns_of_unlike_ranges_are_kept() -> None:
    """Of squares, of which one column has a thousand times the other's."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(60, FEATURES)) * np.logspace(0, 1.5, FEATURES)).astype("float32")
    proto = model(
        "SVMRegressor",
        [TensorProto.FLOAT],
        kernel_type="RBF",
        kernel_params=[1 / (FEATURES * float(x.var())), 0.0, 3.0],
        n_supports=30,
        support_vectors=x[:30].ravel().tolist(),
        coefficients=rng.normal(size=30).tolist(),
        rho=[0.1],
    )
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    (found,) = qsearch.quantize(proto, x).run([x])
    assert 10 * np.log10((wanted**2).mean() / ((wanted - found) ** 2).mean()) > 30


def test_a_label_encoder_of_texts_or_of_far_keys_is_refused() -> None:
    texts: dict[str, Any] = {"keys_strings": ["a"], "values_int64s": [1]}
    far: dict[str, Any] = {"keys_int64s": [0, 1 << 40], "values_int64s": [1, 2]}
    held = numpy_helper.from_array(np.array([1.5, 2.0], np.float32))
    halves: dict[str, Any] = {"keys_tensor": held, "values_int64s": [1, 2]}
    for given, what in ((texts, "whole numbers"), (far, "table"), (halves, "whole numbers")):
        with pytest.raises(OnnxImportError, match=what):
            load(model("LabelEncoder", [TensorProto.INT64], **given).SerializeToString())


def test_maps_of_chances_become_a_tensor() -> None:
    rng = np.random.default_rng(4)
    found = forest(rng, 3)
    proto = model(
        "TreeEnsembleClassifier",
        [TensorProto.INT64, TensorProto.FLOAT],
        **found,
        **leaves(found, "class", [0, 1, 2], rng.random(1000)),
        classlabels_int64s=[0, 1, 2],
    )
    zipped = onnx.ModelProto.FromString(proto.SerializeToString())
    node = helper.make_node("ZipMap", ["y1"], ["p"], domain=ML, classlabels_int64s=[0, 1, 2])
    zipped.graph.node.append(node)
    zipped.graph.output[1].name = "p"
    x = samples(rng, 10)
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


def test_a_tree_that_reaches_a_node_from_itself_is_refused() -> None:
    found = forest(np.random.default_rng(5), 1)
    found["nodes_truenodeids"][1] = 0
    given = leaves(found, "target", [0], np.ones(1))
    proto = model("TreeEnsembleRegressor", [TensorProto.FLOAT], **found, **given, n_targets=1)
    with pytest.raises(OnnxImportError):
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


def test_means_of_forests_are_integers_as_forests_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    nodes = []
    for name in "ab":
        found = forest(rng, 5)
        votes = leaves(found, "class", [0, 1, 2], np.abs(rng.normal(size=1000)) / 5)
        nodes += [
            helper.make_node(
                "TreeEnsembleClassifier",
                ["x"],
                [f"label_{name}", f"{name}"],
                domain=ML,
                **found,
                **votes,
                classlabels_int64s=[0, 1, 2],
                post_transform="NONE",
            ),
            helper.make_node("Unsqueeze", [name, "zero"], [f"row_{name}"]),
        ]
    nodes += [
        helper.make_node("Concat", ["row_a", "row_b"], ["both"], axis=0),
        helper.make_node("ReduceMean", ["both"], ["mean"], axes=[0], keepdims=0),
    ]
    x = samples(rng, 64)
    held = {"zero": np.array([0])}
    (wanted,), module = pipeline(nodes, {"mean": TensorProto.FLOAT}, held, tmp_path, x)
    found = np.concatenate([module.run({"x": row})[0] for row in x[:, None]])
    assert np.quantile(np.abs(found - wanted), 0.95) < 0.05 * np.abs(wanted).max()


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


def test_trees_that_compare_with_no_number_are_refused() -> None:
    found = forest(np.random.default_rng(6), 1)
    found["nodes_values"][0] = float("nan")
    votes = leaves(found, "target", [0], np.ones(32))
    proto = model("TreeEnsembleRegressor", [TensorProto.FLOAT], n_targets=1, **found, **votes)
    with pytest.raises(OnnxImportError, match="a number that is not finite"):
        load(proto.SerializeToString(), input_shapes={"x": (1, FEATURES)})


def test_a_function_of_the_sum_of_trees_is_as_exact_as_they_are(tmp_path: Path) -> None:
    """xgboost's counts: exp of a sum, which a step of the trees hardly changes."""
    rng = np.random.default_rng(7)
    found = forest(rng, 10)
    found |= leaves(found, "target", [0], rng.normal(size=1000) / 5)
    nodes = [
        helper.make_node("TreeEnsembleRegressor", ["x"], ["sum"], domain=ML, n_targets=1, **found),
        helper.make_node("Exp", ["sum"], ["y"]),
    ]
    x = samples(rng, 128)
    (wanted,), module = pipeline(nodes, {"y": TensorProto.FLOAT}, {}, tmp_path, x)
    got = np.concatenate([module.run({"x": row})[0] for row in x[:, None]])
    assert np.quantile(np.abs(got / wanted - 1), 0.9) < 0.01
