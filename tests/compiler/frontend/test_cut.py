"""compiler/frontend/cut.py: a model in parts, and the parts as one model again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qsearch
from compiler.errors import OnnxImportError
from compiler.frontend.cut import Parts, cut, cut_around, joined, logarithms, set_inputs
from compiler.frontend.cut_graph import Graph
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.runtime.pipeline import Pipeline
from compiler.targets.ort.session import OrtExecutor
from tests.each import each

DETECTOR = """
<ir_version: 8, opset_import: ["" : 13]>
detector (float[batch, 3, 8, 8] image) => (float[batch, 16, 4] boxes, int64[kept, 3] selected)
<float[4, 3, 3, 3] w, float[5, 4, 1, 1] v, int64[1] zero = {0}, int64[1] one = {3},
 int64[2] rest = {5, -1}, int64[2] parts = {4, 1}, float[1] size, int64[1] most = {10},
 float[1] iou = {0.5}, float[1] least = {0.1}, float[1] half = {0.5}>
{
  [shift] centred = Sub (image, half)
  [first] a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (centred, w)
  [bend] b = Relu (a)
  [last] c = Conv (b, v)
  [shape] s = Shape (c)
  n = Gather (s, zero)
  target = Concat <axis = 0> (n, rest)
  rows = Reshape (c, target)
  turned = Transpose <perm = [0, 2, 1]> (rows)
  raw, logits = Split <axis = 2> (turned, parts)
  mean = ReduceMean <keepdims = 1, axes = [1, 2, 3]> (image)
  scaled = Mul (raw, size)
  centre = Squeeze (mean, one)
  boxes = Add (scaled, centre)
  sg = Sigmoid (logits)
  scores = Transpose <perm = [0, 2, 1]> (sg)
  [nms] selected = NonMaxSuppression (boxes, scores, most, iou, least)
}
"""


def detector() -> onnx.ModelProto:
    """A stem, two convolutions, a decode that reads the image too, and NMS."""
    rng = np.random.default_rng(0)
    text = DETECTOR
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (5, 4, 1, 1)), ("size", (1,))):
        values = ", ".join(f"{x:.3f}" for x in rng.normal(0, 0.4, shape).reshape(-1))
        head = f"float[{', '.join(map(str, shape))}] {name}"
        text = text.replace(head, f"{head} = {{{values}}}")
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def _pipeline(model: onnx.ModelProto, parts: Parts) -> Pipeline:
    whole = declared_interface(model.SerializeToString())
    return Pipeline(whole, declared_interface(parts.core), parts.before, parts.after)


def _run_parts(
    model: onnx.ModelProto, parts: Parts, image: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    pipeline = _pipeline(model, parts)
    values = pipeline.prepare({"image": image})
    core = OrtExecutor(parts.core)
    return pipeline.finish(values, core.run({name: values[name] for name in core.input_names}))


def _image(count: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(size=(count, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(
    "parts",
    [
        cut_around(Graph(detector()), {"nms"}),
        cut(Graph(detector()), ["last"], ["first"]),
        cut(Graph(detector()), ["turned"], ["centred"]),
        cut(Graph(detector()), ["bend"]),
    ],
    ids=["found", "nodes", "tensors", "in the middle"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_the_parts_compute_what_the_model_computes_and_so_does_their_join(
    parts: Parts, count: int
) -> None:
    model, image = detector(), _image(count)
    wanted = OrtExecutor(model).run({"image": image})
    ours = _run_parts(model, parts, image)
    whole = joined(onnx.ModelProto.FromString(parts.core), _pipeline(model, parts), None)
    onnx.checker.check_model(whole)
    again = OrtExecutor(whole)
    for found in (ours, again.run({"image": image})):
        for one, other in zip(found, wanted, strict=True):
            # onnxruntime fuses other nodes in a part than in the whole.
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    said, made = declared_interface(model.SerializeToString()), whole.SerializeToString()
    assert declared_interface(made) == said


def test_a_head_that_keeps_no_integers_leaves_the_products_in_the_core() -> None:
    parts = cut_around(Graph(detector()), {"nms"})
    assert parts is not None
    assert parts.before is None
    assert parts.last == ("last",)
    assert parts.share == 1.0
    core = onnx.ModelProto.FromString(parts.core)
    assert [node.name for node in core.graph.node] == ["shift", "first", "bend", "last"]
    assert [info.name for info in core.graph.output] == ["c"]


def test_what_stands_in_front_of_all_products_goes_in_front() -> None:
    parts = cut_around(Graph(detector()), {"shift"})
    assert parts is not None
    assert parts.after is None
    assert parts.first == ("first",)


TABLE = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
table (float[batch, 4] x) => (float[batch, 2] y)
<float[4] mean = {1.0, 2.0, 3.0, 4.0}, float[4] width = {1.0, 10.0, 100.0, 1000.0},
 float[4, 2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>
{
  [gaps] filled = ai.onnx.ml.Imputer <imputed_value_floats = [0.0, 0.0, 0.0, 0.0]> (x)
  negative = Less (x, mean)
  sign = Cast <to = 1> (negative)
  moved = Sub (filled, mean)
  turned = Mul (moved, sign)
  [scale] scaled = Div (turned, width)
  [layer] y = MatMul (scaled, w)
}
"""


def test_columns_are_scaled_in_front_where_they_are_prepared_there() -> None:
    parts = cut_around(Graph(onnx.parser.parse_model(TABLE)), {"gaps"})
    assert parts is not None
    assert parts.first == ("layer",)
    assert [node.op_type for node in onnx.load_from_string(parts.core).graph.node] == ["MatMul"]


def test_a_part_in_front_that_joins_samples_runs_them_one_by_one() -> None:
    text = """
<ir_version: 8, opset_import: ["" : 17]>
joins (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, int64[2] row = {1, -1},
 int64[1] count = {1}, int64[2] back = {-1, 4}>
{
  line = Reshape (x, row)
  [tops] top, places = TopK <axis = 0> (line, count)
  rows = Reshape (top, back)
  both = Add (rows, x)
  [layer] y = MatMul (both, w)
}
"""
    model = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    module = qsearch.quantize(model, x)
    assert module.pipeline is not None
    wanted = np.concatenate([OrtExecutor(model).run([row[None]])[0] for row in x])
    np.testing.assert_allclose(module.run([x])[0], wanted, atol=0.2)


def test_an_output_that_is_a_constant_is_one_of_the_whole() -> None:
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4] x) => (float[2, 2] y, int64[2, K] found, float[2] priors)
<float[4, 2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>
{
  y = MatMul (x, w)
  found = NonZero (x)
  priors = Constant <value = float[2] {0.5, 2.0}> ()
}
"""
    model = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    module = qsearch.quantize(model, [{"x": x}])
    wanted = OrtExecutor(model).run([x])
    for found, right in each(zip(module.run([x]), wanted, strict=True)):
        np.testing.assert_allclose(found, right, atol=0.2)


def test_of_two_sides_of_a_node_the_one_with_more_multiplications_is_the_core() -> None:
    parts = cut_around(Graph(detector()), {"bend"})
    assert parts is not None
    names = [node.name for node in onnx.ModelProto.FromString(parts.core).graph.node]
    assert names == ["shift", "first"]  # 16 * 27 * 4 multiplications beside 16 * 20


def test_shapes_are_computed_in_the_part_that_needs_them() -> None:
    parts = cut(Graph(detector()), ["target", "last"])
    assert [i.name for i in onnx.ModelProto.FromString(parts.core).graph.output] == ["c"]


def test_a_node_of_which_onnx_infers_nothing_leaves_the_others_their_types() -> None:
    model = detector()
    first = next(node for node in model.graph.node if node.name == "first")
    del model.graph.node.add(op_type=first.op_type, input=first.input, name="none").output[:]
    assert "image" in Graph(model).types
    assert cut(Graph(model), ["target", "last"]).core


@pytest.mark.parametrize("seed", range(24))
def test_a_core_in_any_graph_has_no_node_that_is_left_out(seed: int) -> None:
    rng, values, nodes = np.random.default_rng(seed), ["x"], []
    for place in range(int(rng.integers(4, 16))):
        op = str(rng.choice(["MatMul", "MatMul", "Add", "Tanh"]))
        near = str(rng.choice(values[-4:]))
        beside = {"MatMul": ["w"], "Add": [str(rng.choice(values))], "Tanh": []}[op]
        node = onnx.helper.make_node(op, [near, *beside], [f"t{place}"], f"n{place}")
        nodes.append(node)
        values.append(f"t{place}")
    info = onnx.helper.make_tensor_value_info
    outputs = dict.fromkeys((values[-1], values[1]))
    weight = onnx.numpy_helper.from_array(rng.normal(0, 0.5, (4, 4)).astype(np.float32), "w")
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", 1, ["n", 4])], [info(n, 1, ["n", 4]) for n in outputs], [weight]
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    left_out = {node.name for node in nodes if rng.random() < 0.3}
    whole = Graph(model)
    parts = cut_around(whole, left_out)
    kept = {whole.nodes[place].name for place in whole.products()} - left_out
    if not left_out or not kept:
        assert parts is None
        return
    assert parts is not None
    core = onnx.ModelProto.FromString(parts.core)
    held = {node.name for node in core.graph.node}
    assert held.isdisjoint(left_out)
    bad = whole.places(left_out)
    for early in (set[int](), *({place} for place in bad), bad):
        before = whole.above(early)
        products = whole.products() - before - whole.below(bad - before)
        assert len(products) <= len(held & kept)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    again = OrtExecutor(joined(core, _pipeline(model, parts), None)).run({"x": x})
    for one, other in zip(again, OrtExecutor(model).run({"x": x}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_no_cut_leaves_a_product_where_every_product_is_left_out() -> None:
    assert cut_around(Graph(detector()), {"first", "last"}) is None


@pytest.mark.parametrize(
    ("until", "from_", "told"),
    [
        (["nms0"], [], "did you mean 'nms'"),
        ([], ["firts"], "did you mean 'first'"),
        (["image"], [], "leaves no product"),
        ([], ["selected"], "leaves no product"),
        (["first"], ["last"], "would be in both parts"),
    ],
)
def test_a_cut_that_cannot_be_made_says_which_name_and_what_to_do(
    until: list[str], from_: list[str], told: str
) -> None:
    with pytest.raises(OnnxImportError) as error:
        cut(Graph(detector()), until, from_)
    assert told in str(error.value)
    assert error.value.fix


def test_an_input_that_is_set_is_a_constant_of_its_type() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "m (float[2] x, int64 sr) => (float[2] y) { f = Cast <to = 1> (sr) y = Mul (x, f) }"
    )
    made = set_inputs(model, {"sr": 3})
    assert [info.name for info in made.graph.input] == ["x"]
    (y,) = OrtExecutor(made).run({"x": np.ones(2, np.float32)})
    assert y.tolist() == [3, 3]
    for name, value in (("sr", 1.5), ("sr", "no"), ("rs", 1)):
        with pytest.raises(OnnxImportError, match="--set-input"):
            set_inputs(model, {name: value})


def test_a_long_chain_is_cut_without_recursion() -> None:
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["t0"])]
    nodes += [onnx.helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(5_000)]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", 1, [1, 2])],
        [info("t5000", 1, [1, 2])],
        [onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    parts = cut_around(Graph(onnx.helper.make_model(graph)), {"Relu_5000"})
    assert parts is not None
    assert parts.last == ("MatMul_0",)


TWO_STAGES = """
<ir_version: 8, opset_import: ["" : 17]>
stages (float[1, 3, 4, 4] image) => (float[regions, 64] found)
<float[2, 3, 1, 1] w, float[2, 64] v, float zero = {0}, int64[2] rows = {-1, 2}>
{
  [first] a = Conv (image, w)
  turned = Transpose <perm = [0, 2, 3, 1]> (a)
  points = Reshape (turned, rows)
  likely = ReduceMax <axes = [1], keepdims = 0> (points)
  kept = Greater (likely, zero)
  regions = Compress <axis = 0> (points, kept)
  [second] found = MatMul (regions, v)
}
"""


def test_the_core_of_two_stages_is_the_one_whose_sizes_are_known() -> None:
    """The second stage has as many rows as the first one finds, however dear a row is."""
    rng = np.random.default_rng(0)
    text = TWO_STAGES
    for name, shape in (("w", (2, 3, 1, 1)), ("v", (2, 64))):
        values = ", ".join(f"{x:.3f}" for x in rng.normal(0, 0.4, shape).reshape(-1))
        head = f"float[{', '.join(map(str, shape))}] {name}"
        text = text.replace(head, f"{head} = {{{values}}}")
    graph = Graph(onnx.parser.parse_model(text))
    outside = {node.name for node in graph.nodes if node.op_type == "Compress"}
    parts = cut_around(graph, outside)
    assert parts is not None
    core = onnx.load_from_string(parts.core)
    assert "first" in {node.name for node in core.graph.node}
    assert "second" not in {node.name for node in core.graph.node}


_SPECTRUM = "re = Conv (x, w)  im = Conv (x, v)  a = Mul (re, re)  b = Mul (im, im)  p = Add (a, b)"
_LEARNED = "h = Conv (x, w)  r = Relu (h)  p = Mul (r, r)"


@pytest.mark.parametrize(
    ("front", "found"),
    [
        (_SPECTRUM, ["l"]),
        ("s = Shape (x)  n = Slice (s, zero, one)  q = Reshape (x, s)  p = Abs (q)", ["l"]),
        (_LEARNED, []),
        ("h = Conv (x, w)  e = Exp (h)  p = Add (e, c)", []),  # a softplus
        ("s = Shape (x)  f = Cast <to = 1> (s)  p = Reshape (f, whole)", []),  # a number of steps
        ("h = Conv (x, w)  g = Conv (x, h)  p = Abs (g)", []),  # nothing fixed
    ],
)
def test_logarithms_of_what_is_fixed_are_features(front: str, found: list[str]) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 1, 3] x) => (float[1, 1, 3] y)
    <float[1, 1, 1] w = {{0.5}}, float[1, 1, 1] v = {{0.25}}, float[1] c = {{1.0}},
     int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[3] whole = {{1, 1, 3}}>
    {{ {front} l = Log (p)  y = Conv (l, w) }}
    """
    assert logarithms(Graph(onnx.parser.parse_model(text)))[1] == found


def test_a_logarithm_behind_all_products_is_no_feature() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 1, 3] x) => (float[1, 1, 3] y)
    <float[1, 1, 1] w = {0.5}> { h = Conv (x, w)  p = Abs (h)  y = Log (p) }
    """
    assert logarithms(Graph(onnx.parser.parse_model(text))) == ([], [])
