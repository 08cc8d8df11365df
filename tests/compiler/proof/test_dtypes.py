"""What may stand in quantized_main and around it."""

from __future__ import annotations

import pytest

from compiler.ir.inference.infer_type import infer_module
from compiler.ir.text.parser import parse
from compiler.ir.ty import TensorType, TupleType
from compiler.proof.dtypes import check_dtypes, count_values, dtypes_of

TEXT = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(4), float32]) {
  %0 = multiply(%x, 16f);
  %1 = PREFIX;
  %2 = clip(%1, a_min=-127f, a_max=127f);
  (cast(%2, dtype="int8"),)
}
def @quantized_main(%q: Tensor[(4), int8]) {
  %0 = cast(%q, dtype="int32");
  %1 = CORE;
  clip(%1, a_min=-99.5f, a_max=100f)
}
def @dequantize_outputs(%r: Tensor[(4), int32]) {
  %0 = cast(%r, dtype="float32");
  SUFFIX
}
def @main(%x: Tensor[(4), float32]) {
  let %a = @quantize_inputs(%x);
  %0 = %a.0;
  let %b = @quantized_main(%0);
  let %c = @dequantize_outputs(%b);
  MAIN
}
"""
PLAIN = {
    "PREFIX": "round(%0)",
    "CORE": "nn.relu(%0)",
    "SUFFIX": "multiply(%0, 0.5f)",
    "MAIN": "%c",
}


def module(**parts: str):  # type: ignore[no-untyped-def]
    source = TEXT
    for key, value in {**PLAIN, **parts}.items():
        source = source.replace(key, value)
    return infer_module(parse(source))


def test_integers_between_conversions_pass() -> None:
    assert check_dtypes(module()) == ()
    assert count_values(module()) == {"int32": 3, "int8": 1}


def test_the_dtypes_of_a_tuple_are_those_of_its_fields_in_order() -> None:
    one, other = TensorType((2,), "int8"), TensorType((), "float32")
    assert dtypes_of(TupleType((one, TupleType((other, one))))) == ["int8", "float32", "int8"]


def test_a_conversion_that_gives_a_function_cannot_be_followed() -> None:
    (found,) = check_dtypes(module(SUFFIX="fn (%y: Tensor[(4), float32]) { %y }"))
    assert (found.node, found.what[:18]) == ("@dequantize_outputs", "cannot be followed")


@pytest.mark.parametrize(
    ("parts", "node", "what"),
    [
        ({"CORE": 'cast(exp(cast(%0, dtype="float32")), dtype="int32")'}, "exp", "is float32"),
        ({"PREFIX": "sqrt(%0)"}, "@quantize_inputs, call of sqrt", "is no conversion"),
        ({"SUFFIX": "exp(%0)"}, "@dequantize_outputs, call of exp", "is no conversion"),
    ],
)
def test_float_and_foreign_operators_are_named(parts: dict[str, str], node: str, what: str) -> None:
    findings = check_dtypes(module(**parts))
    assert any(node in f.node and what in f.what for f in findings)


def test_a_branch_in_the_conversions_is_no_conversion() -> None:
    branch = "if (greater(max(%0), 0f)) { round(%0) } else { %0 }"
    found = {one.node: one.what for one in check_dtypes(module(PREFIX=branch))}
    assert found["@quantize_inputs, If"] == "is no conversion"
