"""What a reader relies on in a drawing: every node once, no overlap."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

import compiler.ops  # noqa: F401  (registers the operators)
from compiler import lower, transform
from compiler.drawing import FORMATS, draw
from compiler.drawing.layout import place
from compiler.drawing.picture import Kind, picture_of
from compiler.errors import CompilerError
from compiler.ir.expr import Call, Constant, Expr, Function, If, Let, Quant, Tuple, Var, call_op
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.rules.integer_calls import requantize
from compiler.span import Span
from tests.compiler.work import calls_of
from tests.each import each


def module_of(params: tuple[Var, ...], body: Expr) -> IRModule:
    return infer_module(IRModule({"main": Function(params, body)}))


def chain(length: int) -> IRModule:
    x = Var("x", TensorType((1, 8)))
    body: Expr = x
    for i in range(length):
        body = call_op("add", call_op("nn.relu", body), body if i % 7 else x)
    return module_of((x,), body)


def test_every_operator_gets_one_box_and_every_use_one_edge() -> None:
    frame = picture_of(chain(10)).frames[0]
    assert len(frame.boxes) == 1 + 20
    assert len(frame.edges) == 10 + 20
    assert {edge.label for edge in frame.edges} == {"(1, 8) float32"}


def test_boxes_do_not_overlap_and_edges_go_down() -> None:
    frame = picture_of(chain(60)).frames[0]
    layout = place(frame)
    rows: dict[float, list[tuple[float, float]]] = {}
    for at in layout.places.values():
        rows.setdefault(at.y, []).append((at.x, at.x + at.width))
    for row in each(rows.values()):
        row.sort()
        assert all(left[1] < right[0] for left, right in pairwise(row))
    for edge, route in each(zip(frame.edges, layout.routes)):
        assert layout.places[edge.source].y < layout.places[edge.target].y
        assert all(upper[1] < lower[1] for upper, lower in pairwise(route))


def test_quantized_regions_are_marked_by_dtype() -> None:
    x = Var("x", TensorType((1, 8)))
    narrow = call_op("cast", x, attrs=_cast("int8"))
    wide = call_op("cast", narrow, attrs=_cast("int32"))
    frame = picture_of(module_of((x,), call_op("cast", wide, attrs=_cast("float32")))).frames[0]
    assert [box.kind for box in frame.boxes] == [
        Kind.INPUT,
        Kind.QUANTIZED,
        Kind.ACCUMULATOR,
        Kind.FLOAT,
    ]
    assert [edge.quantized for edge in frame.edges] == [False, True, False]


def test_a_let_variable_is_the_box_of_its_value_and_branches_are_labelled() -> None:
    x, y, c = Var("x", TensorType((1,))), Var("y"), Var("c", TensorType((), "bool"))
    body = Let(y, call_op("nn.relu", x), If(c, y, call_op("add", y, y)))
    frame = picture_of(module_of((x, c), body)).frames[0]
    assert [box.detail["text"] for box in frame.boxes[2:]] == [
        "%0 = nn.relu(%x)",
        "%1 = add(%0, %0)",
        "%2 = if (%c) %0 else %1",
    ]
    assert [e.label.split(":")[0] for e in frame.edges[-3:]] == ["if", "then", "else"]


def test_function_literals_become_frames_of_their_own() -> None:
    x, p = Var("x", TensorType((1,))), Var("p", TensorType((1,)))
    literal = Function((p,), call_op("nn.relu", p)).with_attr("Inline", 1)
    titles = [f.title for f in picture_of(module_of((x,), Call(literal, (x,)))).frames]
    assert titles == ["@main", "fn0 in @main [Inline=1]"]


@pytest.mark.parametrize("bound", [False, True])
def test_a_call_of_a_kernel_is_a_box_with_its_operators(bound: bool) -> None:
    x, p, f = Var("x", TensorType((1,))), Var("p", TensorType((1,))), Var("f")
    attrs = {
        "Primitive": 1,
        "Compiler": "opu",
        "global_symbol": "opu_0",
        "hdfg_stages": ("add_pre", "compare"),
        "hdfg_ops": ("add", "nn.relu"),
    }
    body = call_op("nn.relu", call_op("add", p, Constant(np.ones(1, np.float32))))
    kernel = Function((p,), body, attrs=attrs)
    called = Let(f, kernel, Call(f, (x,))) if bound else Call(kernel, (x,))
    mod = module_of((x,), called)
    (frame,) = picture_of(mod).frames
    box = frame.boxes[-1]
    assert box.title == "%0  opu_0 on opu"
    shown = [row for row, _ in box.rows]
    assert shown == ["add_pre: add  (1,) float32", "compare: nn.relu  (1,) float32"]
    assert [detail["text"] for _, detail in box.rows] == [
        "%0 = add(%p, const (1,) float32)",
        "%1 = nn.relu(%0)",
    ]
    for format in FORMATS:
        assert "compare: nn.relu" in draw(mod, format)


def test_lowered_calls_name_callee_and_device_and_hold_their_loops() -> None:
    x = Var("x", TensorType((1, 4)))
    body = call_op("exp", call_op("nn.relu", call_op("add", x, Constant(np.ones(4, np.float32)))))
    grouped = transform.FuseOpHW("opu")(module_of((x,), body))
    (frame,) = picture_of(lower(grouped, target="reference").mod).frames
    group, kernel = frame.boxes[1:]
    assert group.title == "%0  @opu_0 on opu"
    shown = [row for row, _ in group.rows]
    assert shown == ["add_pre: add  (1, 4) float32", "compare: nn.relu  (1, 4) float32"]
    assert kernel.title == "%1  @m_fused_exp on reference"
    assert "primfn" in kernel.detail["loops"]
    assert [(e.source, e.target) for e in frame.edges] == [
        (frame.boxes[0].key, group.key),
        (group.key, kernel.key),
    ]


def test_a_box_tells_text_type_attributes_and_span() -> None:
    x = Var("x", TensorType((2, 3)))
    node = call_op("nn.softmax", x, span=Span("onnx:Softmax_7"))
    (*_, box) = picture_of(module_of((x,), node)).frames[0].boxes
    assert box.detail == {
        "text": "%0 = nn.softmax(%x)",
        "type": "(2, 3) float32",
        "attributes": "axis=-1",
        "span": "ONNX node 'Softmax_7'",
    }


def test_a_kernel_tells_the_types_of_its_constants() -> None:
    x = Var("x", TensorType((1, 2, 4, 4)))
    weight = Constant(np.ones((3, 2, 1, 1), np.float32))
    mod = transform.FuseOps()(module_of((x,), call_op("nn.conv2d", x, weight)))
    (*_, box) = picture_of(mod).frames[0].boxes
    assert box.detail["constants"] == "%p1: (3, 2, 1, 1) float32"
    assert "strides=[1, 1]" in box.rows[0][1]["attributes"]


@pytest.mark.parametrize(
    ("quant", "shown"),
    [(Quant(0.25), "0.25, zero point 0"), (Quant(0.5, -3), "0.5, zero point -3"), (None, None)],
)
def test_a_box_shows_the_scale_that_its_integers_carry(
    quant: Quant | None, shown: str | None
) -> None:
    x = Var("x", TensorType((1, 2), "int32"))
    mod = module_of((x,), requantize(x, shift=-1).with_fields(quant=quant))
    (*_, box), (*_, layer) = (
        picture_of(each).frames[0].boxes for each in (mod, transform.FuseOps()(mod))
    )
    assert box.detail.get("scale") == shown
    assert [
        detail.get("scale") for detail in (layer.detail, *(of_row for _, of_row in layer.rows))
    ] == [shown, shown]


def test_a_factor_that_is_computed_is_not_told() -> None:
    x = Var("x", TensorType((1, 2)))
    (*_, box) = picture_of(module_of((x,), call_op("multiply", x, x))).frames[0].boxes
    assert "scale" not in box.detail


def test_json_holds_each_box_once_and_edges_between_them() -> None:
    (frame,) = json.loads(draw(chain(20), "json"))["frames"]
    assert [box["key"] for box in frame["boxes"]] == list(range(41))
    assert len(frame["edges"]) == 20 + 40
    assert all(edge["path"].startswith("M") for edge in frame["edges"])


def test_dot_quotes_what_could_end_a_label() -> None:
    x = Var('a"b\\c', TensorType((2,)))
    text = draw(module_of((x,), call_op("nn.relu", x)), "dot")
    assert '[label="%a\\"b\\\\c\\n(2,) float32"' in text
    assert "n0 -> n1" in text


def test_constants_are_named_in_the_box_that_reads_them() -> None:
    x = Var("x", TensorType((2,)))
    body = call_op("add", x, Constant(np.ones(2, "float32")))
    frame = picture_of(module_of((x,), Tuple((body, body)))).frames[0]
    assert frame.boxes[1].detail["text"] == "%0 = add(%x, const (2,) float32)"
    assert frame.boxes[2].detail["text"] == "%1 = (%0, %0)"


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_two_thousand_nodes_are_drawn_in_linear_time_and_always_alike(format: str) -> None:
    mod, short = chain(1000), chain(250)
    first = draw(mod, format)
    assert draw(mod, format) == first
    assert calls_of(lambda: draw(mod, format)) < 6 * calls_of(lambda: draw(short, format))


@pytest.mark.slow
def test_twenty_thousand_nodes_need_no_recursion() -> None:
    assert picture_of(chain(10_000)).num_boxes == 20_001


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(CompilerError, match="dott") as caught:
        draw(chain(1), "dott")
    assert "dot" in str(caught.value.fix)


def _cast(dtype: str) -> object:
    from compiler.ir.expr import Op

    attrs_type = Op.get("cast").attrs_type
    assert attrs_type is not None
    return attrs_type.make(dtype=dtype)
