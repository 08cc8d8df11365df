"""ai.onnx.ml: trees, linear models, scalers and the maps behind classifiers.

A tree ensemble is integral as it is imported. Each feature becomes a step between the smallest and
the largest number that it is compared with, in 16 bits; nodes and leaves are tables:

    step = cast(clip((x - low) * factor))                      uint16, one factor a feature
    node = first[node] + (step[feature[node]] > limit[node])   once for each level of the trees
    y    = (sum of value[node] over the trees) * scale         value: int16

Probabilities of sums are tables of integers, too.
Source: the operators' specifications, ONNX ai.onnx.ml 1 to 5; what a classifier of one score
answers is onnxruntime's.

Support vector machines are products with the vectors and with their coefficients.

    kernel = f(x @ vectors.T)                     f: a power, tanh; with none x stands for it, and
                                                  coefficients @ vectors for coefficients
           = exp(x @ (2 * gamma * vectors).T - gamma * (sum of vectors^2 + sum of x^2))     "RBF"
    scores = kernel @ coefficients.T + rho        one for each pair of classes

The class that wins most of its pairs is the answer, the first one of equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.convert.normalization import normalized
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

_ML: Final = "ai.onnx.ml"
_MODES: Final = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")


# ---- trees ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Trees:
    """Nodes of all trees by number; the children of a leaf are -1.

    Attributes:
        mode: "LEQ", "LT", ... as "x is less than or equal to the limit"; "LEAF".
        feature, limit: column of x and what it is compared with.
        yes, no: the node behind a comparison that holds, and one that does not.
        value: (nodes, targets), 0 at inner nodes.
        roots: a node for each tree.
    """

    mode: list[str]
    feature: Array
    limit: Array
    yes: Array
    no: Array
    value: Array
    roots: Sequence[int]


def _numbers(node: OnnxNode, name: str) -> Array:
    """An attribute of numbers, as floats or as a tensor of doubles."""
    found = node.attr(name, None)
    return np.asarray(node.attr(f"{name}_as_tensor", ()) if found is None else found)


def _trees_by_names(node: OnnxNode, what: str, targets: int) -> _Trees:
    """Read the trees of the operators before opset 5; ``what``: "target" or "class"."""
    names = list(zip(node.attr("nodes_treeids"), node.attr("nodes_nodeids")))
    places = {name: place for place, name in enumerate(names)}
    mode = [m.removeprefix("BRANCH_") for m in node.attr("nodes_modes")]

    def children(which: str) -> Array:
        ids = zip(names, node.attr(which), mode, strict=True)
        return np.array([-1 if m == "LEAF" else places[tree, child] for (tree, _), child, m in ids])

    yes = children("nodes_truenodeids")
    no = children("nodes_falsenodeids")
    value = np.zeros((len(names), targets))
    leaves = zip(node.attr(f"{what}_treeids"), node.attr(f"{what}_nodeids"))
    for leaf, column, weight in zip(
        leaves, node.attr(f"{what}_ids"), _numbers(node, f"{what}_weights"), strict=True
    ):
        value[places[leaf], column] += weight
    inner = set(yes.tolist()) | set(no.tolist())
    roots = [place for place in range(len(names)) if place not in inner]
    feature = np.array(node.attr("nodes_featureids"))
    limit = _numbers(node, "nodes_values")
    return _Trees(mode, feature, limit, yes, no, value, roots)


def _trees_by_places(node: OnnxNode) -> _Trees:
    """Read the trees of opset 5: leaves stand behind the inner nodes."""
    modes = node.attr("nodes_modes").tolist()
    count = len(modes)
    weights = node.attr("leaf_weights")
    leaves = len(weights)

    def children(which: str) -> Array:
        to_leaf = np.array(node.attr(f"nodes_{which}leafs"), bool)
        places = np.array(node.attr(f"nodes_{which}nodeids")) + count * to_leaf
        return np.concatenate([places, np.full(leaves, -1)])

    value = np.zeros((count + leaves, node.attr("n_targets", 1)))
    value[count + np.arange(leaves), node.attr("leaf_targetids")] = weights
    mode = [_MODES[m] if m < len(_MODES) else "MEMBER" for m in modes] + ["LEAF"] * leaves
    feature = np.r_[node.attr("nodes_featureids"), [0] * leaves]
    limit = np.r_[node.attr("nodes_splits"), [0.0] * leaves]
    roots = node.attr("tree_roots")
    return _Trees(mode, feature, limit, children("true"), children("false"), value, roots)


_LAST: Final = 65534
"""Step that stands for all that is larger; 0 stands for all that is smaller."""
_MARGIN: Final = 0.02
"""Error of float32, as a share of a step, where a feature equals a limit."""


def _steps(node: OnnxNode, trees: _Trees, features: int) -> tuple[Array, Array]:
    """Return the value at step 0 of each feature, and the steps in a unit, float32."""
    low = np.zeros(features, np.float32)
    factor = np.ones(features, np.float32)
    asked = np.array([m != "LEAF" for m in trees.mode])
    if not np.isfinite(trees.limit[asked]).all():
        raise node.error(
            "a tree compares with a number that is not finite",
            fix="fill gaps in front of the trees (sklearn.impute.SimpleImputer)",
        )
    for feature in np.unique(trees.feature[asked]):
        limits = trees.limit[asked & (trees.feature == feature)]
        least = max(np.abs(limits).max(), 1e-30) * 2.0**-8
        factor[feature] = 64000 / max(np.ptp(limits), least)
        low[feature] = limits.min() - 512 / factor[feature]
    return low, factor


def _tables(
    node: OnnxNode, trees: _Trees, low: Array, factor: Array
) -> tuple[dict[str, Array], Array, int]:
    """Tables by number of a node, the numbers of the roots, and how many levels there are.

    The two nodes behind a comparison stand side by side; a leaf follows itself.
    """
    low = low.astype(np.float64)
    factor = factor.astype(np.float64)
    depth = 0
    source = list(trees.roots)
    rows = [[0, _LAST + 1, 0] for _ in source]  # feature, limit, first
    front = [(number, (place, False)) for number, place in enumerate(source)]
    while front:
        depth += 1
        if depth > len(trees.mode) * 2 + 1:
            raise node.error("a tree reaches a node from itself")
        behind: list[tuple[int, tuple[int, bool]]] = []
        for number, (place, second) in front:
            mode = trees.mode[place]
            yes = int(trees.yes[place])
            no = int(trees.no[place])
            if mode == "LEAF":
                rows[number] = [0, _LAST + 1, number]
                continue
            if mode not in _MODES:
                raise node.error(f"a node of mode {mode!r} is not supported")
            feature = int(trees.feature[place])
            at = (trees.limit[place] - low[feature]) * factor[feature]
            up = math.ceil(at - 1 + _MARGIN)
            down = math.floor(at - 1 - _MARGIN)
            limit = up if mode in ("LEQ", "GT") else down
            pair = [(yes, False), (no, False)]
            if mode in ("EQ", "NEQ"):  # not above the limit, and then not below it either
                same, other = pair if mode == "EQ" else pair[::-1]
                limit = down if second else up
                pair = [other, same] if second else [(place, True), other]
            elif mode in ("GT", "GTE"):
                pair.reverse()
            rows[number] = [feature, limit, len(rows)]
            for child in pair:
                behind.append((len(rows), child))
                rows.append([0, _LAST + 1, 0])
                source.append(child[0])
        front = behind
    if len(set(source)) < len(trees.mode):
        raise node.error("there are nodes that no root reaches")
    feature, limit, first = np.array(rows).T
    kept = {
        "feature": feature.astype(np.int32),
        "limit": limit.astype(np.uint16),
        "first": first.astype(np.int32),
        "value": trees.value[source] * (first == np.arange(len(rows)))[:, None],
    }
    return kept, np.arange(len(trees.roots), dtype=np.int32), depth - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Integers (batch, targets) in int32, what one of them is worth, and how large they get."""

    data: Expr
    scale: float
    most: int

    def real(self, node: OnnxNode) -> Expr:
        """Cast to float32; the limits tell the quantizer the possible values."""
        held = node.call("clip", self.data, a_min=float(-self.most), a_max=float(self.most))
        value = node.call("cast", held, dtype="float32")
        return node.call("multiply", value, node.const(self.scale, "float32"))


def _scores(node: OnnxNode, trees: _Trees, base: Array) -> _Scores:
    """Sums, means, smallest or largest values of the leaves that are reached."""
    data = node.call("cast", node.arg(0), dtype="float32")
    batch, features = node.shape(data)
    low, factor = _steps(node, trees, features)
    moved = node.call("subtract", data, node.const(low[None]))
    steps = node.call("multiply", moved, node.const(factor[None]))
    inside = node.call("clip", steps, a_min=0.0, a_max=float(_LAST))
    x = node.call("cast", inside, dtype="uint16")
    tables, roots, levels = _tables(node, trees, low, factor)
    how = node.attr("aggregate_function", "SUM")
    how = how if isinstance(how, str) else ("AVERAGE", "SUM", "MIN", "MAX")[how]
    scale = max(float(np.abs(tables["value"]).max()), 1e-30) / 32767
    tables["value"] = np.rint(tables["value"] / scale).astype(np.int16)

    def of(table: str, at: Expr) -> Expr:
        return node.call("take", node.const(tables[table]), at, axis=0)

    at: Expr = node.const(np.repeat(roots[None], batch, 0))
    for _ in range(levels):
        asked = node.call("gather", x, of("feature", at), axis=1)
        above = node.call("greater", asked, of("limit", at))
        at = node.call("add", of("first", at), node.call("cast", above, dtype="int32"))
    found = node.call("cast", of("value", at), dtype="int32")
    name = {"AVERAGE": "sum", "SUM": "sum", "MIN": "min", "MAX": "max"}[how]
    total = node.call(name, found, axis=(1,))
    scale /= len(roots) if how == "AVERAGE" else 1
    if base.any():
        total = node.call("add", total, node.const(np.rint(base / scale), "int32"))
    most = 32767 * (len(roots) if name == "sum" else 1) + int(np.abs(base).max() / scale + 1)
    return _Scores(total, scale, most)


_CHANCE: Final = 1 << 14
"""Steps of a probability."""
_EXP: Final = 12
"""Bits of the steps of exponents, of which [0, 16) has a table."""


def _exponents(node: OnnxNode, scores: _Scores, below: Expr) -> Expr:
    """exp(-below) in steps of a probability, of integers >= 0 at the scale of the scores."""
    entries = (16 << _EXP) - 1
    table = np.rint(_CHANCE * np.exp(-np.arange(entries + 1) / (1 << _EXP)))
    table[-1] = 0
    reach = max(1, math.ceil(16 / scores.scale))
    inside = node.call("clip", below, a_min=0.0, a_max=float(min(reach, 2**30)))
    ratio = node.call("cast", inside, dtype="int64")
    ratio = node.call("multiply", ratio, node.const(round(scores.scale * 2.0**32), "int64"))
    place = node.call("right_shift", ratio, node.const(32 - _EXP, "int64"))
    place = node.call("clip", place, a_min=0.0, a_max=float(entries))
    return node.call("take", node.const(table, "int32"), place, axis=0)


def _posted(node: OnnxNode, scores: _Scores, how: str) -> _Scores:
    """Scores behind ``post_transform``."""
    if how == "NONE":
        return scores
    top: Expr = node.const(0, "int32")
    if how == "SOFTMAX":
        top = node.call("max", scores.data, axis=(1,), keepdims=True)
    elif how == "LOGISTIC":
        top = node.call("maximum", scores.data, top)
    else:
        raise node.error(f"post_transform {how!r} is not NONE, LOGISTIC or SOFTMAX")
    share = _exponents(node, scores, node.call("subtract", top, scores.data))
    total = node.call("sum", share, axis=(1,), keepdims=True)
    if how == "LOGISTIC":
        total = node.call("add", share, _exponents(node, scores, top))
    share = node.call("multiply", share, node.const(_CHANCE, "int32"))
    return _Scores(node.call("floor_divide", share, total), 1 / _CHANCE, _CHANCE)


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


def _of_one_score(
    node: OnnxNode, score: _Scores, labels: Array, is_chance: bool, mirrored: bool
) -> list[Expr]:
    """Label and scores of two classes, of the score (batch, 1) of the second one.

    Args:
        is_chance: the score is a probability.
        mirrored: the first class has what is left of it, or its negative; else 0.
    """
    whole = round(1 / score.scale) if is_chance else 0
    second = node.call("greater", score.data, node.const(whole // 2, "int32"))
    place = node.call("squeeze", node.call("cast", second, dtype="int32"), axis=(1,))
    label = node.call("take", node.const(labels), place, axis=0)
    other: Expr = node.const(np.zeros(node.shape(score.data)), "int32")
    if mirrored:
        other = node.call("subtract", node.const(whole, "int32"), score.data)
    both = node.joined([other, score.data], 1)
    how = node.attr("post_transform", "NONE")
    if mirrored and (is_chance or how == "SOFTMAX"):
        how = "NONE"
    most = max(score.most, whole)
    return [label, _posted(node, _Scores(both, score.scale, most), how).real(node)]


def _base(node: OnnxNode, targets: int) -> Array:
    values = _numbers(node, "base_values").astype(np.float64)
    if values.size:
        return values
    return np.zeros(targets)


@from_onnx("TreeEnsembleRegressor", since=1, domain=_ML)
def tree_ensemble_regressor(node: OnnxNode) -> Expr:
    """A value of each target."""
    targets = node.attr("n_targets", 1)
    scores = _scores(node, _trees_by_names(node, "target", targets), _base(node, targets))
    return _posted(node, scores, node.attr("post_transform", "NONE")).real(node)


@from_onnx("TreeEnsembleClassifier", since=1, domain=_ML)
def tree_ensemble_classifier(node: OnnxNode) -> list[Expr]:
    """The label and a score of each class."""
    labels = labels_of(node)
    classes = set(node.attr("class_ids"))
    trees = _trees_by_names(node, "class", len(labels))
    base = _base(node, len(labels))
    if len(labels) == 2 and len(classes) == 1:
        one = replace(trees, value=trees.value[:, sorted(classes)])
        scores = _scores(node, one, base[-1:])
        positive = bool((trees.value >= 0).all())
        return _of_one_score(node, scores, labels, positive, classes == {0})
    scores = _scores(node, trees, base)
    posted = _posted(node, scores, node.attr("post_transform", "NONE"))
    return [best_label(node, scores.data, labels), posted.real(node)]


@from_onnx("TreeEnsemble", since=5, domain=_ML)
def tree_ensemble(node: OnnxNode) -> Expr:
    """Both of the older ones, without labels."""
    scores = _scores(node, _trees_by_places(node), np.zeros(1))
    how = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[node.attr("post_transform", 0)]
    real = _posted(node, scores, how).real(node)
    return node.call("cast", real, dtype=node.arg(0).tensor_type.dtype)


# ---- linear models, and what stands around them --------------------------------------------------


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
    default = node.attr("default_int64", -1) if whole else node.attr("default_float", -0.0)
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


# ---- support vector machines ---------------------------------------------------------------------


def _kernel(node: OnnxNode, data: Expr, vectors: Array, kind: str) -> Expr:
    """Return the kernel of each row and each vector: (batch, vectors)."""
    gamma, offset, degree = node.attr("kernel_params", None) or (1.0, 0.0, 1.0)
    if kind == "RBF":
        lengths = node.const(-gamma * np.square(vectors).sum(axis=1), "float32")
        near = node.call("add", products_of(node, data, 2 * gamma * vectors), lengths)
        own = node.call("sum", node.call("multiply", data, data), axis=(1,), keepdims=True)
        own = node.call("multiply", own, node.const(gamma, "float32"))
        return node.call("exp", node.call("subtract", near, own))
    found = products_of(node, data, gamma * vectors)
    found = node.call("add", found, node.const(offset, "float32"))
    if kind == "SIGMOID":
        return node.call("tanh", found)
    return node.call("power", found, node.const(degree, "float32"))


def _products(node: OnnxNode, weight: Array, count: int) -> Expr:
    """Return the scores of each row of weights; ``count`` vectors, or none: then they are those of
    the data."""
    data = node.call("cast", node.arg(0), dtype="float32")
    kind = node.choice("kernel_type", ("LINEAR", "POLY", "RBF", "SIGMOID"))
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
    found = _products(node, weight, node.attr("n_supports", 0))
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
    slope = node.attr("prob_a", None)
    sizes = node.attr("vectors_per_class", None)
    if slope and (not sizes or len(labels) > 2):
        raise node.error(
            "probabilities are read of two classes with vectors; others are fitted step by step",
            fix="export it without them: sklearn.svm.SVC(probability=False)",
        )
    coefficients = np.asarray(node.attr("coefficients"))
    if not sizes:
        scores = _products(node, coefficients.reshape(len(labels), -1), 0)
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
    scores = _products(node, weight, len(own))
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
