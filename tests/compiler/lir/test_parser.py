"""Loops as text: as the specification shows, read back as they were, errors with a caret."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import LoweringError, ParseError
from compiler.ir.attrs import DictAttrs
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.parser import parse_primfunc
from compiler.lir.reference import run
from compiler.lir.scalars import Axis, Bin, Buffer, Load, Scalar, literal
from tests.compiler.random_loops import random_loops

EXP = """@m_fused_exp = primfn(p0: float32[10]) -> (o0: float32[10]) attrs={target="c"} {
  o0[i] for (i<10) = exp(p0[i])
}"""
CONVOLUTION = """@conv = primfn(p0: int8[1, 3, 8, 8], p1: int8[4, 3, 3, 3]) \
-> (o0: int8[1, 4, 8, 8]) {
  const c0: int32[4] = meta[relay.Constant][0]
  o0[n, o, y, x] for (n<1, o<4, y<8, x<8) parallel = sum(0; c<3, i<3, j<3) \
int32(select(y + i >= 1 && y + i < 9 && x + j >= 1 && x + j < 9, p0[n, c, y+i-1, x+j-1], 0i8)) \
* int32(p1[o, c, i, j]) |> \
int8(min(max(fixed_point_multiply(acc + c0[o], 1073741825, -3), -128), 127))
}"""


def text_of(func: PrimFunc) -> tuple[str, tuple[Any, ...]]:
    arrays: list[Any] = []

    def constant(array: Any) -> str:
        arrays.append(array)
        return f"meta[relay.Constant][{len(arrays) - 1}]"

    return func.definition(func.name, constant), tuple(arrays)


def test_the_specifications_example_is_read_and_written_as_it_is() -> None:
    func = parse_primfunc(EXP)
    assert func.name == "m_fused_exp"
    assert func.attrs["target"] == "c"
    assert text_of(func)[0] == EXP
    x = np.linspace(-1, 1, 10, dtype=np.float32)
    np.testing.assert_allclose(func.evaluate([x])[0], np.exp(x), rtol=1e-6)


def test_a_quantized_convolution_is_read_written_and_run() -> None:
    bias = np.array([1, -2, 3, -4], np.int32)
    func = parse_primfunc(CONVOLUTION, (bias,))
    assert text_of(func)[0] == CONVOLUTION
    rng = np.random.default_rng(0)
    data = rng.integers(-128, 128, (1, 3, 8, 8)).astype(np.int8)
    weight = rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    padded = np.pad(data.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    total = np.einsum("ncyxij,ocij->noyx", windows, weight.astype(np.int64))
    scaled = np.floor((total + bias[:, None, None]) * 1073741825 * 2.0**-34 + 0.5)
    np.testing.assert_array_equal(func.evaluate([data, weight])[0], np.clip(scaled, -128, 127))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30))
def test_reading_what_is_written_gives_the_same_function(seed: int) -> None:
    func, args = random_loops(seed)
    text, arrays = text_of(func)
    again = parse_primfunc(text, arrays)
    assert text_of(again)[0] == text
    assert again.digest() == func.digest()
    for got, want in zip(run(again, args), run(func, args)):
        np.testing.assert_array_equal(got, want)


def test_names_of_any_kind_and_attributes_survive() -> None:
    p, o = Buffer("p0", (), "uint64", "param"), Buffer("o0", (), "uint64", "out")
    attrs = DictAttrs({"k": 5, "axis": -1, "mode": 'a "b"', "deep": ((1, 2), (), (True, 0.5))})
    block = Extern("topk", (p,), (o,), attrs)
    func = PrimFunc('odd "name"', (p,), (o,), (), (), (block,))
    text = func.definition('"odd \\"name\\""', lambda array: "")
    again = parse_primfunc(text)
    assert again.name == func.name
    assert isinstance(again.blocks[0], Extern)
    assert dict(again.blocks[0].attrs.items()) == dict(attrs.items())


def test_a_thousand_nested_operations_are_written_and_read() -> None:
    p, o = Buffer("p0", (3,), "int32", "param"), Buffer("o0", (3,), "int32", "out")
    i = Axis("i", 3)
    left: Scalar = Load(p, (i,))
    right: Scalar = Load(p, (i,))
    for _ in range(1000):
        left = Bin("+", left, literal(1, "int32"))
        right = Bin("max", literal(1, "int32"), Bin("-", literal(9, "int32"), right))
    for expr in (left, right):
        func = PrimFunc("f", (p,), (o,), (), (), (Compute(o, (i,), expr, (i,)),))
        text, _ = text_of(func)
        assert text_of(parse_primfunc(text))[0] == text
    values = np.array([1, 2, 3], np.int32)
    np.testing.assert_array_equal(
        PrimFunc("f", (p,), (o,), (), (), (Compute(o, (i,), left, (i,)),)).evaluate([values])[0],
        values + 1000,
    )


def broken(**changes: str) -> str:
    line = {
        "head": "p0: int32[4]", "where": "i", "loops": "i<4", "body": "p0[i]", "end": "}",
    } | changes  # fmt: skip
    return (
        f"@f = primfn({line['head']}) -> (o0: int32[4]) {{\n"
        f"  o0[{line['where']}] for ({line['loops']}) = {line['body']}\n{line['end']}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (broken(head="p0: int23[4]"), "2:"),
        (broken(body="p1[i]"), "unknown buffer 'p1'"),
        (broken(body="p0[j]"), "unknown loop 'j'"),
        (broken(body="p0[i] +"), "expected a value"),
        (broken(body="sine(p0[i])"), "unknown function 'sine'"),
        (broken(body="p0[i] + 1i8"), "+ of int32 and int8"),
        (broken(body="300i8"), "300 is no int8"),
        (broken(body="max(p0[i])"), "max takes 2 values"),
        (broken(body="acc"), "unknown loop 'acc'"),
        (broken(body="p0[i] $ 1"), "unexpected character '$'"),
        (broken(loops="i<4, i<4"), "two loops are called i"),
        (broken(body="sum(0; r<2) p0[i] |> p0[r]"), "unknown loop 'r'"),
        (broken(end="} 5"), "expected the end"),
        ("nothing at all", "expected '@name = primfn"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text: str, problem: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_primfunc(text)
    if problem != "2:":
        assert problem in str(caught.value)
    assert "^" in str(caught.value)


def test_what_can_be_read_keeps_the_rules_too() -> None:
    with pytest.raises(LoweringError, match="axis 0 of p0 has 4 elements, its index is 1 to 4"):
        parse_primfunc(broken(body="p0[i+1]"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.randoms(use_true_random=False))
def test_damaged_text_is_refused_or_read_but_never_breaks_the_reader(
    seed: int, rng: random.Random
) -> None:
    text, arrays = text_of(random_loops(seed)[0])
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(len(text) + 1), rng.randrange(6)
        piece = rng.choice(("", *"()[],;:=<>+-*/&|^019abci\n{} "))
        text = text[:at] + piece + text[at + length :]
    try:
        read = parse_primfunc(text, arrays)
    except (ParseError, LoweringError):
        return
    again = text_of(read)
    assert text_of(parse_primfunc(*again))[0] == again[0]


def test_print_shows_the_loops_and_describes_constants() -> None:
    assert str(parse_primfunc(EXP)) == EXP
    described = CONVOLUTION.replace("meta[relay.Constant][0]", "<4 numbers>")
    assert str(parse_primfunc(CONVOLUTION, (np.zeros(4, np.int32),))) == described
