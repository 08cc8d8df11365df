"""Numbers of the text form: every value comes back, and what does not fit its dtype is refused."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import ParseError
from compiler.ir.expr import Call, Constant
from compiler.ir.text.literals import scalar_array, scalar_literal, shortest
from compiler.ir.text.parser import parse_expr
from tests.each import each


def read_again(value: np.ndarray) -> np.ndarray:
    """The array of the literal of a rank-0 array."""
    literal = scalar_literal(value)
    assert literal is not None
    constant = parse_expr(literal)
    assert isinstance(constant, Constant)
    return constant.data


def test_every_float16_reads_back_to_the_same_bits() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for value in each(values[~np.isnan(values)]):
        number = shortest(float(value), "float16")
        assert scalar_array(number, "f16").tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ends_of_a_dtype_and_random_bits_read_back(dtype: str) -> None:
    info = np.finfo(dtype)
    ends = [info.max, info.min, info.smallest_subnormal, info.smallest_normal, np.inf, -np.inf, 0.0]
    ends += [np.nextafter(info.max, 0), -0.0]
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, np.iinfo(unsigned).max, 500, unsigned, endpoint=True).view(dtype)
    for value in [*np.array(ends, dtype), *drawn[~np.isnan(drawn)]]:
        assert read_again(np.array(value, dtype)).tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "literal",
    [
        "3.40283e+38f",
        "3.4028236e+38f",
        "-3.40283e+38f",
        "1e39f",
        "70000f16",
        "65520f16",
        "-65520f16",
        "1.8e308f64",
        "1e999f64",
        "1e999f",
        "40000i16",
        "-32769i16",
        "2147483648",
        "9223372036854775808i64",
    ],
)
def test_a_number_that_does_not_fit_its_dtype_is_refused(literal: str) -> None:
    with pytest.raises(ParseError, match="does not fit"):
        parse_expr(literal)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("3.4028235e+38f", np.finfo("float32").max),
        ("65519f16", np.float16(65504)),
        ("1e-60f", np.float32(0)),
        ("inff16", np.float16(np.inf)),
        ("-32768i16", np.int16(-32768)),
    ],
)
def test_a_number_that_rounds_to_a_value_of_its_dtype_is_that_value(
    literal: str, value: np.generic
) -> None:
    constant = parse_expr(literal)
    assert isinstance(constant, Constant)
    assert constant.data.tobytes() == value.tobytes()


@pytest.mark.parametrize("bound", ["1e999", "18446744073709551616", "-9223372036854775809"])
def test_an_attribute_that_does_not_fit_64_bits_is_refused(bound: str) -> None:
    with pytest.raises(ParseError, match="does not fit"):
        parse_expr(f"free_var %x: Tensor[(1), float32]; clip(%x, a_min=0f, a_max={bound})")


@pytest.mark.parametrize(
    "written",
    [
        "9" * 5000,
        "9" * 5000 + "f",
        "free_var %x: Tensor[(" + "9" * 5000 + "), int8]; %x",
        "free_var %x: int8; (%x,)." + "9" * 5000,
        "free_var %x: int8; clip(%x, a_min=0, a_max=" + "9" * 5000 + ")",
        "meta[relay.Constant][" + "9" * 5000 + "]",
        "%" + "9" * 5000,
    ],
)
def test_a_number_of_5000_digits_is_refused_where_it_stands(written: str) -> None:
    with pytest.raises(ParseError, match="more than 64 characters"):
        parse_expr(written)


@pytest.mark.parametrize("word", ["%{}", "@{}", "{}", '"{}"'])
def test_a_name_of_a_million_letters_is_refused(word: str) -> None:
    with pytest.raises(ParseError, match="more than 65536 characters"):
        parse_expr(word.format("a" * 1_000_000))


def test_20000_minus_signs_are_as_many_negations_and_the_last_belongs_to_a_number() -> None:
    expr = parse_expr("free_var %x: int8; " + "-" * 20_000 + "%x")
    depth = 0
    while isinstance(expr, Call):
        depth, expr = depth + 1, expr.args[0]
    assert depth == 20_000
    negated = parse_expr("--3")
    assert isinstance(negated, Call)
    assert isinstance(negated.args[0], Constant)
    assert negated.args[0].data == -3


def record(fields: str) -> str:
    return f'{{"type_key": "CastAttrs", "fields": {fields}}}'


@pytest.mark.parametrize(
    "section",
    [
        "[1]",
        "7",
        '{"relay.Constant": {"0": 7}}',
        '{"relay.Constant": [7]}',
        '{"relay.Constant": [{}]}',
        '{"relay.Constant": [{"dtype": "O", "shape": [1], "b64": "AAAAAAAAAAA="}]}',
        '{"relay.Constant": [{"dtype": "int8", "shape": [1152921504606846976], "b64": "AA=="}]}',
        '{"relay.Constant": [{"dtype": "int8", "shape": [-1], "b64": 7}]}',
        '{"relay.Constant": [{"dtype": "int8", "shape": "x", "b64": "AA=="}]}',
        '{"relay.Constant": [{"dtype": ["int8"], "shape": [1], "b64": "AA=="}]}',
        '{"relay.Constant": [{"npz": ["k0"]}]}',
        '{"relay.Constant": ' + "[" * 100_000,
        '{"relay.Constant": [' + "9" * 5000 + "]}",
    ],
)
def test_a_metadata_section_that_is_ill_formed_is_a_parse_error(section: str) -> None:
    with pytest.raises(ParseError):
        parse_expr(f"meta[relay.Constant][0]\n#[metadata]\n{section}")


@pytest.mark.parametrize(
    "entries",
    [
        ["{}"],
        ['{"type_key": "CastAttrs", "fields": 7}'],
        ['{"type_key": "CastAttrs", "fields": {"dtype": 7}}'],
        ['{"type_key": ["CastAttrs"], "fields": {}}'],
        [record('{"dtype": "meta[Attrs][0]"}')],
        [record(f'{{"dtype": "[meta[Attrs][{i + 1}], meta[Attrs][{i + 1}]]"}}') for i in range(60)],
        [record(f'{{"dtype": "meta[Attrs][{i + 1}]"}}') for i in range(5000)],
    ],
)
def test_attribute_records_of_the_metadata_that_are_ill_formed_are_a_parse_error(
    entries: list[str],
) -> None:
    function = "fn (%x: int8, a=meta[Attrs][0]) { %x }"
    with pytest.raises(ParseError):
        parse_expr(f'{function}\n#[metadata]\n{{"Attrs": [{", ".join(entries)}]}}')


def test_definitions_without_an_end_are_refused_at_the_first() -> None:
    with pytest.raises(ParseError, match="this definition has no end"):
        parse_expr("@a=b(" * 100_000)
