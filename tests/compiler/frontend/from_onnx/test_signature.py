"""A converter's signature says what is read of a node, and errors name what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import pytest
from onnx import helper, numpy_helper

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.node import ConstantInputError, GraphValues, OnnxNode
from compiler.frontend.from_onnx.signature import Input, by_signature
from compiler.ir.expr import Expr, Var
from compiler.ir.ty import TensorType
from compiler.ops.number_format import Array
from compiler.span import Span

SHAPE = np.array([2, 3])


def node(*inputs: str, **attributes: Any) -> OnnxNode:
    """A node that may read x, which is computed, and shape, which is stored."""
    values = GraphValues({"shape": numpy_helper.from_array(SHAPE, "shape")}, Counter(), {})
    x = Var("x", TensorType((6,)))
    x.set_checked_type(TensorType((6,)))
    values.bind("x", x)
    proto = helper.make_node("Example", inputs, ["y"], **attributes)
    return OnnxNode(proto, 17, Span("onnx:example", 0, 0, 0, 0), values)


def given(function: Any, of: OnnxNode) -> list[Any]:
    """What a converter gets."""
    found = by_signature(function)(of)
    assert isinstance(found, list)
    return found


def test_inputs_are_read_in_their_order_and_attributes_by_name() -> None:
    def convert(
        node: OnnxNode, x: Expr, shape: list[int], bias: Expr | None = None, *, axis: int = -1,
        keepdims: bool = True, mode: Literal["linear", "cubic"] = "linear",
    ) -> Any:  # fmt: skip
        return [node, x, shape, bias, axis, keepdims, mode]

    of = node("x", "shape", keepdims=0, mode="cubic")
    found = given(convert, of)
    assert found[0] is of
    assert found[1].name_hint == "x"
    assert found[2:] == [[2, 3], None, -1, False, "cubic"]


def test_further_inputs_are_a_list() -> None:
    def convert(first: Expr, *others: Expr) -> Any:
        return [first, *others]

    assert [one.name_hint for one in given(convert, node("x", "x", "shape"))] == ["x", "x", "shape"]


def test_an_input_is_read_when_it_is_asked() -> None:
    def convert(weight: Input, bias: Input | None = None) -> Any:
        return [weight.weight("turned", lambda w: w[::-1]), weight.shape, weight.is_stored, bias]

    of = node("shape")
    turned, shape, stored, bias = given(convert, of)
    assert (shape, stored, bias) == ((2,), True, None)
    assert [name for name, _ in of.values.params.items()] == [turned.name_hint]


def test_an_input_that_must_be_constant_is_named() -> None:
    def convert(data: Expr, output_shape: Array) -> Any:
        return [output_shape]

    assert given(convert, node("x", "shape"))[0].tolist() == [2, 3]
    with pytest.raises(ConstantInputError, match=r"the output shape \(input 1, 'x'\)") as caught:
        given(convert, node("x", "x"))
    assert caught.value.input_name == "x"


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (node(axis=1), "input 0 is missing"),
        (node("x"), "attribute 'axis' is missing"),
        (node("x", axis=1, mode="round"), "mode 'round' is not one of linear, cubic"),
    ],
)
def test_what_is_missing_or_wrong_is_named(of: OnnxNode, says: str) -> None:
    def convert(x: Expr, *, axis: int, mode: Literal["linear", "cubic"] = "linear") -> Any:
        return [x, axis, mode]

    with pytest.raises(OnnxImportError, match=says):
        given(convert, of)
