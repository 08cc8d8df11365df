"""ai.onnx.ml: linear models, scalers and the maps behind classifiers.

Source: the operators' specifications, ONNX ai.onnx.ml 1 to 5.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from compiler.frontend.from_onnx.convert.normalization import normalized
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

_ML: Final = "ai.onnx.ml"


def labels_of(node: OnnxNode) -> Array:
    """Integer labels of a classifier; ``read_model`` has made numbers of texts."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if node.attr(name, None) is not None:
            return np.asarray(node.attr(name), np.int64)
    raise node.error("it has no labels", fix="export it with the labels of its classes")


def best_label(node: OnnxNode, scores: Expr, labels: Array) -> Expr:
    """The label of the largest score of each row, the first one of equals."""
    place = node.call("argmax", scores, axis=(1,), dtype="int64")
    return node.call("take", node.const(labels), place, axis=0)


@from_onnx("Scaler", since=1, domain=_ML)
def scaler(node: OnnxNode) -> Expr:
    """(x - offset) * scale along the last axis, in float32."""
    data = node.call("cast", node.arg(0), dtype="float32")
    moved = node.call("subtract", data, node.const(node.attr("offset", [0.0]), "float32"))
    return node.call("multiply", moved, node.const(node.attr("scale", [1.0]), "float32"))


@from_onnx("Normalizer", since=1, domain=_ML)
def normalizer(node: OnnxNode) -> Expr:
    """Rows by their largest element, their sum or their length."""
    data = node.call("cast", node.arg(0), dtype="float32")
    return normalized(node, data, node.rank(data) - 1, node.attr("norm", "MAX"))


@from_onnx("Binarizer", since=1, domain=_ML)
def binarizer(node: OnnxNode) -> Expr:
    """1 above the threshold."""
    data = node.arg(0)
    above = node.call("greater", data, node.scalar_like(node.attr("threshold", 0.0), data))
    return node.call("cast", above, dtype=data.tensor_type.dtype)


_MOST_KEYS: Final = 1 << 16
"""From the smallest key of a LabelEncoder to the largest one."""


@from_onnx("LabelEncoder", since=2, domain=_ML)
def label_encoder(node: OnnxNode) -> Expr:
    """A number for each whole number, by a table; the default at its ends and where no key is."""

    def given(*names: str) -> Array:
        held = (node.attr(name, None) for name in names)
        return np.ravel(next((one for one in held if one is not None), ()))

    keys = given("keys_int64s", "keys_tensor")
    values = given("values_int64s", "values_floats", "values_tensor")
    fits = keys.size and len(keys) == len(values)
    if not fits or keys.dtype.kind != "i" or values.dtype.kind not in "if":
        raise node.error(
            "keys are whole numbers here, and values numbers",
            fix="encode texts and fractions in front of the model",
        )
    low, high = int(keys.min()), int(keys.max())
    if high - low >= _MOST_KEYS:
        raise node.error(f"keys from {low} to {high} would make a table of so many numbers")
    whole = values.dtype.kind == "i"
    if whole:
        default = node.attr("default_int64", -1)
    else:
        default = node.attr("default_float", -0.0)
    default = np.ravel(node.attr("default_tensor", default))[0]
    table = np.full(high - low + 3, default, np.int64 if whole else np.float32)
    table[keys - low + 1] = values
    place = node.call("subtract", node.arg(0), node.const(low - 1, "int64"))
    return node.call("take", node.const(table), place, axis=0)


def products_of(node: OnnxNode, data: Expr, weight: Array) -> Expr:
    """Rows of float32 by rows of weights: the features are scaled by what they weigh, so that steps
    of all err alike."""
    share = np.abs(weight).max(axis=0)
    share[share == 0] = 1
    data = node.call("multiply", data, node.const(share[None], "float32"))
    # FoldScaleAxis passes no reshape, so each feature keeps its own steps.
    rows = node.call("expand_dims", data, axis=1)
    products = node.call("nn.dense", rows, node.const(weight / share, "float32"))
    return node.call("squeeze", products, axis=(1,))


def _linear(node: OnnxNode, targets: int) -> Expr:
    data = node.call("cast", node.arg(0), dtype="float32")
    scores = products_of(node, data, np.reshape(node.attr("coefficients"), (targets, -1)))
    bias = node.attr("intercepts", None)
    if bias is None:
        return scores
    return node.call("add", scores, node.const(bias, "float32"))


def transformed(node: OnnxNode, scores: Expr) -> Expr:
    """Scores after the node's ``post_transform``."""
    how = node.choice("post_transform", ("NONE", "LOGISTIC", "SOFTMAX"))
    if how == "LOGISTIC":
        return node.call("sigmoid", scores)
    if how == "SOFTMAX":
        return node.call("nn.softmax", scores, axis=-1)
    return scores


@from_onnx("LinearRegressor", since=1, domain=_ML)
def linear_regressor(node: OnnxNode) -> Expr:
    """A product with constant weights."""
    return transformed(node, _linear(node, node.attr("targets", 1)))


@from_onnx("LinearClassifier", since=1, domain=_ML)
def linear_classifier(node: OnnxNode) -> list[Expr]:
    """The label of the largest score, and all scores."""
    labels = labels_of(node)
    scores = _linear(node, len(labels))
    return [best_label(node, scores, labels), transformed(node, scores)]
