"""ai.onnx.ml: support vector machines, as products with the vectors and with their coefficients.

    kernel = f(x @ vectors.T)                     f: a power, tanh; with none x stands for it, and
                                                  coefficients @ vectors for coefficients
           = exp(x @ (2 * gamma * vectors).T - gamma * (sum of vectors^2 + sum of x^2))     "RBF"
    scores = kernel @ coefficients.T + rho        one for each pair of classes

The class that wins most of its pairs is the answer, the first one of equals.
Source: the operators' specifications, ONNX ai.onnx.ml 1; onnxruntime for what these leave open.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.convert.machine_learning import (
    best_label,
    labels_of,
    products_of,
    transformed,
)
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

_ML: Final = "ai.onnx.ml"


def _kernel(node: OnnxNode, data: Expr, vectors: Array, kind: str) -> Expr:
    """How near each row is to each vector: (batch, vectors)."""
    gamma, offset, degree = node.attr("kernel_params", None) or (1.0, 0.0, 1.0)
    if kind == "RBF":
        lengths = node.const(-gamma * np.square(vectors).sum(axis=1), "float32")
        near = node.call("add", products_of(node, data, 2 * gamma * vectors), lengths)
        own = node.call("sum", node.call("multiply", data, data), axis=(1,), keepdims=True)
        own = node.call("multiply", own, node.const(gamma, "float32"))
        return node.call("exp", node.call("subtract", near, own))
    if kind not in ("POLY", "SIGMOID"):
        raise node.error(f"kernel_type {kind!r} is not LINEAR, POLY, RBF or SIGMOID")
    found = products_of(node, data, gamma * vectors)
    found = node.call("add", found, node.const(offset, "float32"))
    if kind == "SIGMOID":
        return node.call("tanh", found)
    return node.call("power", found, node.const(degree, "float32"))


def _scores(node: OnnxNode, weight: Array, count: int) -> Expr:
    """Of each row of weights; ``count`` vectors, or none: then they are those of the data."""
    data, kind = node.call("cast", node.arg(0), dtype="float32"), node.attr("kernel_type", "LINEAR")
    if count:
        vectors = np.reshape(node.attr("support_vectors"), (count, -1)).astype(np.float64)
        if kind == "LINEAR":
            weight = weight @ vectors
        else:
            data = _kernel(node, data, vectors, kind)
    rho = node.const(np.asarray(node.attr("rho")), "float32")
    return node.call("add", products_of(node, data, weight), rho)


@from_onnx("SVMRegressor", since=1, domain=_ML)
def svm_regressor(node: OnnxNode) -> Expr:
    """A value; of a machine of one class 1 inside, -1 outside."""
    weight = np.reshape(node.attr("coefficients"), (1, -1))
    found = _scores(node, weight, node.attr("n_supports", 0))
    if not node.attr("one_class", 0):
        return transformed(node, found)
    inside = node.call("cast", node.call("greater", found, node.const(0, "float32")), dtype="int32")
    doubled = node.call("multiply", inside, node.const(2, "int32"))
    signs = node.call("subtract", doubled, node.const(1, "int32"))
    return node.call("cast", signs, dtype="float32")


@from_onnx("SVMClassifier", since=1, domain=_ML)
def svm_classifier(node: OnnxNode) -> list[Expr]:
    """The label, and a score of each pair of classes; of two classes one of each."""
    labels = labels_of(node)
    slope, sizes = node.attr("prob_a", None), node.attr("vectors_per_class", None)
    if slope and (not sizes or len(labels) > 2):
        raise node.error(
            "probabilities are read of two classes with vectors; others are fitted step by step",
            fix="export it without them: sklearn.svm.SVC(probability=False)",
        )
    coefficients = np.asarray(node.attr("coefficients"))
    if not sizes:
        scores = _scores(node, coefficients.reshape(len(labels), -1), 0)
        return [best_label(node, scores, labels), transformed(node, scores)]
    own = np.repeat(np.arange(len(sizes)), sizes)
    given = coefficients.reshape(len(sizes) - 1, -1)
    pairs = list(combinations(range(len(sizes)), 2))
    weight = np.zeros((len(pairs), len(own)))
    wins = np.zeros((len(sizes), len(pairs)), np.int32)
    for pair, (one, other) in enumerate(pairs):
        weight[pair, own == one] = given[other - 1, own == one]
        weight[pair, own == other] = given[one, own == other]
        wins[one, pair], wins[other, pair] = 1, -1
    scores = _scores(node, weight, len(own))
    won = node.call("cast", node.call("greater", scores, node.const(0, "float32")), dtype="int32")
    each = node.call("multiply", node.call("expand_dims", won, axis=1), node.const(wins[None]))
    # A class that is the second one of a pair wins it where the first does not.
    at_least = node.const((wins < 0).sum(axis=1)[None].astype(np.int32))
    votes = node.call("add", node.call("sum", each, axis=(2,)), at_least)
    label = best_label(node, votes, labels)
    sides = np.array([[-1.0, 1.0]])
    if slope:  # Platt's: the first class has the logistic function of the turned score
        scores = node.call("multiply", scores, node.const(sides * slope[0], "float32"))
        moved = node.const(sides * node.attr("prob_b")[0], "float32")
        return [label, node.call("sigmoid", node.call("add", scores, moved))]
    if len(pairs) == 1:
        scores = node.call("multiply", scores, node.const(sides, "float32"))
    return [label, transformed(node, scores)]
