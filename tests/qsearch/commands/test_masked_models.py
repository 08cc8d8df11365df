"""Models whose scores are masked, in the ways that exporters write masks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

import qsearch
from compiler.errors import CompilerError
from compiler.targets.ort.session import OrtExecutor
from tests.each import each

Arrays = dict[str, NDArray[Any]]
TOKENS, WIDTH = 12, 16
LOW: Final = float(np.finfo(np.float32).min)
INF: Final = float("inf")
EARLIER: Final = np.tril(np.ones((TOKENS, TOKENS), bool))


@dataclass
class Graph:
    """One head of attention: ``scores`` of the input x, and its values."""

    opset: int = 17
    tokens: int = TOKENS
    nodes: list[NodeProto] = field(default_factory=list)
    constants: Arrays = field(default_factory=dict)
    inputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs["x"] = (1, self.tokens, WIDTH), "float32"
        weights = np.random.default_rng(0).standard_normal((3, WIDTH, WIDTH)) * 0.5
        self.q, self.k, self.v = (self("MatMul", "x", self.const(w)) for w in weights)

    def __call__(self, op: str, *args: str, result: str = "", **attrs: Any) -> str:
        name = result or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(args), [name], name=f"{op}_{name}", **attrs))
        return name

    def const(self, values: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, "int64")

    def given(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        self.inputs[name] = shape, dtype
        return name

    @property
    def scores(self) -> str:
        products = self("MatMul", self.q, self("Transpose", self.k, perm=[0, 2, 1]))
        return self("Mul", products, self.const(WIDTH**-0.5))

    def weighed(self, weights: str) -> None:
        self("MatMul", weights, self.v, result="y")

    def attend(self, scores: str) -> None:
        self.weighed(self("Softmax", scores, axis=-1))

    def lowered(self, mask: str, low: float = LOW) -> str:
        """(1 - mask) * low of a mask of ones for visible places."""
        ones = self("Cast", self("Unsqueeze", mask, self.ints(1)), to=TensorProto.FLOAT)
        return self("Mul", self("Sub", self.const(1), ones), self.const(low))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "masked",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(d)), s)
                for n, (s, d) in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info("y")],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


Draw = Callable[[np.random.Generator], NDArray[Any]]
Recipe = tuple[Graph, Mapping[str, Draw]]


def visible(rng: np.random.Generator) -> NDArray[np.bool_]:
    return np.arange(TOKENS) < rng.integers(3, TOKENS + 1)


def as_ones(dtype: str, count: int = TOKENS) -> dict[str, Draw]:
    return {"m": lambda rng: visible(rng)[None, :count].astype(dtype)}


def as_floats(low: float) -> dict[str, Draw]:
    return {"m": lambda rng: np.where(visible(rng) & EARLIER, 0, low).astype(np.float32)[None]}


def causal(low: float) -> NDArray[Any]:
    return np.where(EARLIER, 0, low)[None]


def float_input(low: float, opset: int = 17) -> Recipe:
    g = Graph(opset)
    g.attend(g("Add", g.scores, g.given("m", (1, TOKENS, TOKENS))))
    return g, as_floats(low)


def biased_input() -> Recipe:
    g, _ = float_input(LOW)

    def bias(rng: np.random.Generator) -> NDArray[Any]:
        values = rng.standard_normal((1, TOKENS, TOKENS))
        return np.where(visible(rng) & EARLIER, values, LOW).astype(np.float32)

    return g, {"m": bias}


def attention_operator() -> Recipe:
    g = Graph(23)
    mask = g.given("m", (1, 1, TOKENS, TOKENS))
    g("Attention", g.q, g.k, g.v, mask, result="y", q_num_heads=2, kv_num_heads=2)
    return g, {"m": lambda rng: as_floats(LOW)["m"](rng)[None]}


def counted_keys(causal: int) -> Recipe:
    g = Graph(24)
    heads = [
        g("Transpose", g("Reshape", t, g.ints(1, TOKENS, 2, WIDTH // 2)), perm=[0, 2, 1, 3])
        for t in (g.q, g.k, g.v)
    ]
    count = g.given("n", (1,), "int64")
    g("Attention", *heads, "", "", "", count, result="y", is_causal=causal)
    return g, {"n": lambda rng: rng.integers(1, TOKENS + 1, 1)}


def two_masks(op: str, dtype: str = "int64") -> Recipe:
    g = Graph()
    padding = g.lowered(g.given("m", (1, TOKENS), dtype))
    g.attend(g("Add", g.scores, g(op, padding, g.const(causal(LOW)))))
    return g, as_ones(dtype)


def raised(op: str, high: float) -> Recipe:
    """scores + (m - 1) * high, or scores - (1 - m) * high."""
    g = Graph()
    mask = g.lowered(g.given("m", (1, TOKENS), "int64"), high)
    g.attend(g("Sub", g.scores, mask) if op == "Sub" else g("Add", g.scores, g("Neg", mask)))
    return g, as_ones("int64")


def scaled_behind(low: float) -> Recipe:
    g = Graph()
    g.attend(g("Div", hidden_scores(g, low), g.const(2)))
    return g, {}


def joined(op: str) -> Recipe:
    g = Graph()
    padding = g.lowered(g.given("m", (1, TOKENS - 2), "int64"))
    if op == "Pad":
        padding = g(op, padding, g.ints(0, 0, 0, 0, 0, 2), g.const(LOW))
    else:
        padding = g(op, g.const(np.zeros((1, 1, 2))), padding, axis=2)
    g.attend(g("Add", g.scores, padding))
    return g, as_ones("int64", TOKENS - 2)


def expanded(low: float, dtype: str) -> Recipe:
    """masked_fill of an inverted mask, as older transformers have it."""
    g = Graph()
    ones = g("Unsqueeze", g.given("m", (1, TOKENS), dtype), g.ints(1))
    hidden = g("Sub", g.const(1), g("Cast", ones, to=TensorProto.FLOAT))
    mask = g("Where", g("Cast", hidden, to=TensorProto.BOOL), g.const(low), hidden)
    g.attend(g("Add", g.scores, g("Add", mask, g.const(causal(low)))))
    return g, as_ones(dtype)


def chosen_twice() -> Recipe:
    g = Graph()
    ones = g("Unsqueeze", g.given("m", (1, TOKENS), "int64"), g.ints(1))
    mask = g("Where", g("Cast", ones, to=TensorProto.BOOL), g.const(0), g.const(LOW))
    hidden = g("Cast", mask, to=TensorProto.BOOL)
    g.attend(g("Where", hidden, g.const(LOW), g.scores))
    return g, as_ones("int64")


def hidden_scores(g: Graph, low: float = -INF) -> str:
    return g("Where", g.const(EARLIER[None], "bool"), g.scores, g.const(low))


def sink_beside_scores() -> Recipe:
    g = Graph()
    sink = g.const(np.random.default_rng(1).standard_normal((1, TOKENS, 1)))
    scores = g("Concat", hidden_scores(g), sink, axis=2)
    scores = g("Sub", scores, g("ReduceMax", scores, axes=[-1], keepdims=1))
    weights = g("Softmax", scores, axis=-1)
    g.weighed(g("Slice", weights, g.ints(0), g.ints(TOKENS), g.ints(2)))
    return g, {}


def padded_scores() -> Recipe:
    g = Graph()
    some = g("Slice", g.scores, g.ints(0), g.ints(TOKENS - 2), g.ints(2))
    g.attend(g("Pad", some, g.ints(0, 0, 0, 0, 0, 2), g.const(-INF)))
    return g, {}


def by_hand() -> Recipe:
    g = Graph()
    scores = hidden_scores(g)
    e = g("Exp", g("Sub", scores, g("ReduceMax", scores, axes=[-1], keepdims=1)))
    g.weighed(g("Div", e, g("ReduceSum", e, g.ints(-1), keepdims=1)))
    return g, {}


def reduced(op: str, low: float) -> Recipe:
    g = Graph()
    g("Mul", g.scores, g(op, hidden_scores(g, low), axes=[-1], keepdims=1), result="y")
    return g, {}


def sigmoid() -> Recipe:
    g = Graph()
    g.weighed(g("Sigmoid", hidden_scores(g)))
    return g, {}


def guarded() -> Recipe:
    """Rows without a visible place are zeros, as scaled_dot_product_attention is exported."""
    g = Graph()
    mask = g("Where", g.given("m", (1, 1, TOKENS), "bool"), g.const(0), g.const(-INF))
    weights = g("Softmax", g("Add", g.scores, mask), axis=-1)
    g.weighed(g("Where", g("IsNaN", weights), g.const(0), weights))
    return g, {"m": lambda rng: (np.arange(TOKENS) < rng.choice([0, 4, 8]))[None, None]}


def logarithms() -> Recipe:
    g = Graph()
    g.weighed(g("Exp", g("LogSoftmax", hidden_scores(g, -1e9), axis=-1)))
    return g, {}


def decays() -> Recipe:
    """Gates of a chunk, their differences pair by pair, and both along two axes."""
    g = Graph()
    drawn = np.random.default_rng(2)
    steps = g("Softplus", g("MatMul", "x", g.const(drawn.standard_normal((WIDTH, 4)))))
    steps = g("Reshape", g("Transpose", g("Neg", steps), perm=[0, 2, 1]), g.ints(1, 4, 2, 6))
    total = g("CumSum", steps, g.const(3, "int64"))
    last = g("Gather", total, g.const(5, "int64"), axis=3)
    left = g("Add", g("Sub", g("Unsqueeze", last, g.ints(3)), total), steps)
    largest = g("ReduceMax", left, axes=[3], keepdims=1)
    pairs = g("Sub", g("Unsqueeze", total, g.ints(4)), g("Unsqueeze", total, g.ints(3)))
    pairs = g("Add", pairs, g("Unsqueeze", steps, g.ints(3)))
    pairs = g("Where", g.const(np.tril(np.ones((6, 6))), "bool"), pairs, g.const(-INF))
    weights = g("Exp", g("Sub", pairs, g("ReduceMax", pairs, axes=[-1], keepdims=1)))
    products = g("MatMul", weights, g.const(drawn.standard_normal((6, 6))))
    g("Add", products, g("Unsqueeze", g("Add", left, largest), g.ints(4)), result="y")
    return g, {}


def decayed() -> Recipe:
    """Linear attention: scores that decay, whose differences the other way round are huge."""
    g = Graph()
    gates = g("MatMul", "x", g.const(np.random.default_rng(2).standard_normal((WIDTH, 1))))
    total = g("CumSum", g("Neg", g("Softplus", gates)), g.const(1, "int64"))
    pairs = g("Sub", total, g("Transpose", total, perm=[0, 2, 1]))
    left = g("Exp", g("Where", g.const(EARLIER, "bool"), pairs, g.const(-INF)))
    g.weighed(g("Mul", g.scores, left))
    return g, {}


RECIPES: dict[str, Callable[[], Recipe]] = {
    "an input of the lowest float": partial(float_input, LOW),
    "an input of the lowest float at opset 11": partial(float_input, LOW, 11),
    "an input of minus infinity": partial(float_input, -INF),
    "an input of minus a hundred": partial(float_input, -100),
    "an input that holds a bias too": biased_input,
    "the mask of Attention": attention_operator,
    "the number of keys of Attention": partial(counted_keys, 0),
    "the number of keys and causal": partial(counted_keys, 1),
    "a sum of two masks": partial(two_masks, "Add"),
    "a sum with a mask of floats": partial(two_masks, "Add", "float32"),
    "the lower of two masks": partial(two_masks, "Min"),
    "a mask that is subtracted": partial(raised, "Sub", 65500),
    "the highest float that is subtracted": partial(raised, "Sub", -LOW),
    "a negated mask": partial(raised, "Add", 1e9),
    "masked scores that are scaled": partial(scaled_behind, -1e9),
    "a padded mask": partial(joined, "Pad"),
    "a concatenated mask": partial(joined, "Concat"),
    "a filled inverted mask": partial(expanded, LOW, "int64"),
    "a filled inverted mask of floats": partial(expanded, LOW, "float32"),
    "a filled inverted mask of -1e4": partial(expanded, -1e4, "int64"),
    "a choice by a mask as truth values": chosen_twice,
    "a sink beside masked scores": sink_beside_scores,
    "padded scores": padded_scores,
    "softmax by hand": by_hand,
    "a maximum": partial(reduced, "ReduceMax", -INF),
    "a minimum": partial(reduced, "ReduceMin", INF),
    "a sigmoid": sigmoid,
    "rows that are masked as a whole": guarded,
    "a logarithm of softmax": logarithms,
    "gates of a matrix memory": decays,
    "scores that decay": decayed,
}


def drawn(recipe: Recipe, count: int, seed: int) -> list[Arrays]:
    graph, masks = recipe
    rng = np.random.default_rng(seed)
    shape = graph.inputs["x"][0]
    return [
        {
            "x": rng.standard_normal(shape).astype(np.float32),
            **{name: draw(rng) for name, draw in masks.items()},
        }
        for _ in range(count)
    ]


def compiled(recipe: Recipe, place: Path, data: list[Arrays], **fields: Any) -> Any:
    onnx.save(recipe[0].model(), place / "model.onnx")
    calibration = {name: np.concatenate([one[name] for one in data]) for name in data[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert qsearch.doctor(place / "model.onnx").to_dict()["fully_integral"]
        return qsearch.quantize(place / "model.onnx", calibration, **fields)


def decibels(found: list[Any], wanted: list[Any]) -> float:
    noise = sum(float(np.square(a - b).sum()) for a, b in zip(found, wanted, strict=True))
    return 10 * np.log10(sum(float(np.square(b).sum()) for b in wanted) / noise)


@pytest.mark.parametrize("name", RECIPES)
def test_a_masked_model_is_integral_and_close_to_float(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]()
    module = compiled(recipe, tmp_path, drawn(recipe, 16, 1))
    fresh = drawn(recipe, 8, 2)
    floats = OrtExecutor((tmp_path / "model.onnx").read_bytes())
    wanted = [np.asarray(floats.run(one)[0]) for one in fresh]
    assert decibels([module.run(one)[0] for one in fresh], wanted) > 25
    module.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
    exact = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "exact.onnx").files[0]
    forms = [partial(module.run, executor="engine"), OrtExecutor(exact.read_bytes()).run]
    for one in fresh[:2]:
        (reference,) = module.run(one, "reference")
        for run in forms:
            np.testing.assert_array_equal(run(one)[0], reference)


def weights_only() -> Recipe:
    g = Graph()
    mask = g.lowered(g.given("m", (1, TOKENS), "int64"))
    g("Softmax", g("Add", g.scores, mask), axis=-1, result="y")
    return g, as_ones("int64")


@pytest.mark.parametrize("far", [1, 8])
def test_a_masked_place_has_no_weight_however_low_the_other_scores_are(
    far: int, tmp_path: Path
) -> None:
    recipe = weights_only()
    module = compiled(recipe, tmp_path, drawn(recipe, 16, 1))
    for one in each(drawn(recipe, 8, 2)):
        one["x"] = one["x"] * np.float32(far)
        (found,) = module.run(one)
        assert not found[:, :, one["m"][0] == 0].any()
        assert np.allclose(found.sum(axis=-1), 1, atol=1e-3)  # of 15 bits each


def test_what_masked_places_hold_changes_no_bit(tmp_path: Path) -> None:
    recipe = RECIPES["a sum of two masks"]()
    module = compiled(recipe, tmp_path, drawn(recipe, 16, 1))
    (one,) = drawn(recipe, 1, 2)
    one["m"] = (np.arange(TOKENS) < 5)[None].astype(np.int64)
    other = {**one, "x": one["x"].copy()}
    other["x"][:, 5:] = -3 * other["x"][:, 5:]
    np.testing.assert_array_equal(module.run(one)[0][:, :5], module.run(other)[0][:, :5])


def test_the_count_of_masked_places_changes_no_bit(tmp_path: Path) -> None:
    few, outputs = 8, []
    for tokens in (few, TOKENS):
        g = Graph(tokens=tokens)
        g.attend(g("Add", g.scores, g.lowered(g.given("m", (1, tokens), "int64"))))
        data = drawn((Graph(tokens=few), {}), 8, 1)
        for one in data:
            one["x"] = np.pad(one["x"], ((0, 0), (0, tokens - few), (0, 0)))
            one["m"] = (np.arange(tokens) < few)[None].astype(np.int64)
        place = tmp_path / str(tokens)
        place.mkdir()
        fields = {"calibrate_mode": "max", "weight_rounding": "nearest"}
        module = compiled((g, {}), place, data, qconfig=fields)
        outputs.append([module.run(one)[0][:, :few] for one in data])
    np.testing.assert_array_equal(*outputs)


def test_minus_infinity_in_front_of_a_product_is_refused(
    tmp_path: Path,
) -> None:
    """Minus infinity is no value of what a product reads."""
    recipe = float_input(LOW)
    data = drawn(recipe, 4, 1)
    data[1]["x"][0, 0, 0] = -INF
    with pytest.raises(CompilerError, match="sample 1 of 'x' holds -inf"):
        compiled(recipe, tmp_path, data)
