"""Rounding, saturation, division, shifts, comparisons: the numbers every backend must give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

import compiler
from compiler import relay
from compiler.errors import EvaluationError, TypeInferenceError


def run(name: str, *arrays: ArrayLike, dtype: str = "float32", **attrs: Any) -> NDArray[Any]:
    values = [np.asarray(a, None if isinstance(a, np.ndarray) else dtype) for a in arrays]
    params = [relay.var(f"x{k}", v.shape, str(v.dtype)) for k, v in enumerate(values)]
    mod = relay.module(relay.Function(tuple(params), relay.call(name, *params, **attrs)))
    return compiler.evaluate(mod, values)[0]


def test_round_goes_half_away_from_zero_and_never_too_far() -> None:
    below_half = np.nextafter(np.float32(0.5), np.float32(0))
    values = [0.5, -0.5, 1.5, 2.5, -2.5, below_half, -below_half, 8388609.0, np.inf]
    assert run("round", values).tolist() == [1, -1, 2, 3, -3, 0, 0, 8388609.0, math.inf]
    assert run("round_even", [0.5, 1.5, 2.5, -0.5]).tolist() == [0, 2, 2, 0]


def test_negative_and_abs_saturate() -> None:
    assert run("negative", [-128, 127, 0], dtype="int8").tolist() == [127, -127, 0]
    assert run("abs", [-128, -1, 127], dtype="int8").tolist() == [127, 1, 127]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-7, 7), min_size=1, max_size=20))
def test_erf_is_accurate_to_the_last_bits(values: list[float]) -> None:
    got = run("erf", values, dtype="float64")
    # Cody's approximation is good to 1e-16 relative; two roundings are added.
    np.testing.assert_allclose(got, [math.erf(v) for v in values], rtol=4e-16, atol=4e-16)


def test_erf_and_sigmoid_meet_their_limits() -> None:
    assert run("erf", [np.inf, -np.inf, 0.0]).tolist() == [1, -1, 0]
    assert math.isnan(run("erf", [math.nan]).item())
    assert run("sigmoid", [1000.0, -1000.0, 0.0]).tolist() == [1, 0, 0.5]


def test_float16_is_computed_in_float32_and_rounded_once() -> None:
    x = np.linspace(-4, 4, 101).astype(np.float16)
    want = (1 / (1 + np.exp(-x.astype(np.float32)))).astype(np.float16)
    np.testing.assert_array_equal(run("sigmoid", x), want)


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (1.9, "int8", 1),
        (-1.9, "int8", -1),
        (200.0, "int8", 127),
        (-200.0, "int8", -128),
        (math.nan, "int32", 0),
        (math.inf, "int32", 2**31 - 1),
        (2.0**31, "int32", 2**31 - 1),
        (-(2.0**31), "int32", -(2**31)),
        (1e30, "int64", 2**63 - 1),
        (-5.0, "uint8", 0),
        (0.5, "bool", True),
    ],
)
def test_cast_from_float_truncates_and_saturates(value: float, dtype: str, want: Any) -> None:
    assert cast([value], "float32", dtype).tolist() == [want]


def cast(values: ArrayLike, source: str, dtype: str) -> NDArray[Any]:
    array = np.asarray(values, source)
    x = relay.var("x", array.shape, source)
    return compiler.evaluate(
        relay.module(relay.Function((x,), relay.op.cast(x, dtype=dtype))), [array]
    )[0]


def test_cast_between_integers_wraps_and_to_float_rounds_to_even() -> None:
    assert cast([300, -129, 128], "int32", "int8").tolist() == [44, 127, -128]
    assert cast([-1], "int8", "uint16").tolist() == [65535]
    assert cast([2**24 + 1, 2**24 + 3], "int32", "float32").tolist() == [2**24, 2**24 + 4]
    assert cast([True, False], "bool", "int8").tolist() == [1, 0]
    assert cast([7, 8, -9], "int32", "int4").tolist() == [7, -8, 7]


def test_clip_bounds_of_integers_are_truncated_and_saturated() -> None:
    x = np.array([-128, -3, 3, 127], np.int8)
    assert run("clip", x, a_min=-2.7, a_max=2.7).tolist() == [-2, -2, 2, 2]
    assert run("clip", x, a_min=-1000.0, a_max=1000.0).tolist() == x.tolist()
    assert run("clip", [-1.0, 9.0], a_min=0.0, a_max=6.0).tolist() == [0, 6]


def test_integer_arithmetic_wraps() -> None:
    big = np.array([2**31 - 1], np.int32)
    one = np.array([1], np.int32)
    assert run("add", big, one).item() == -(2**31)
    assert run("multiply", big, np.array([2], np.int32)).item() == -2
    assert run("left_shift", big, one).item() == -2
    assert run("sum", np.array([127, 1], np.int8)).item() == -128


@settings(max_examples=100, deadline=None)
@given(st.integers(-128, 127), st.integers(-128, 127))
def test_integer_division_truncates_toward_zero(a: int, b: int) -> None:
    lhs, rhs = np.array([a], np.int16), np.array([b], np.int16)
    want = 0 if b == 0 else int(a / b)
    assert run("divide", lhs, rhs).item() == want
    if b:
        assert run("floor_divide", lhs, rhs).item() == a // b
        assert run("floor_mod", lhs, rhs).item() == a % b
        assert run("trunc_mod", lhs, rhs).item() == a - b * want


def test_right_shift_is_arithmetic_and_amounts_are_checked() -> None:
    x = np.array([-3, -1, 3], np.int32)
    assert run("right_shift", x, np.array(1, np.int32)).tolist() == [-2, -1, 1]
    for amount in (-1, 32):
        with pytest.raises(EvaluationError, match="32"):
            run("right_shift", x, np.array(amount, np.int32))


def test_power_of_integers_truncates_negative_exponents() -> None:
    base = np.array([2, 1, -1, -1, 0], np.int32)
    exponent = np.array([-1, -5, -3, -4, -1], np.int32)
    assert run("power", base, exponent).tolist() == [0, 1, -1, 1, 0]
    assert run("power", np.array([3], np.int32), np.array([4], np.int32)).item() == 81


def test_where_broadcasts_three_ways() -> None:
    condition = np.array([[True], [False]])
    got = run("where", condition, np.array([1, 2], np.int32), np.array(0, np.int32))
    assert got.tolist() == [[1, 2], [0, 0]]


def test_comparisons_give_bool() -> None:
    assert run("greater_equal", [1.0, 2.0], [2.0, 2.0]).tolist() == [False, True]
    assert run("not_equal", [math.nan], [math.nan]).tolist() == [True]


@pytest.mark.parametrize(
    ("name", "types", "words"),
    [
        ("add", [((2, 3), "float32"), ((2, 4), "float32")], ["(2, 3)", "(2, 4)", "3 and 4"]),
        ("add", [((2,), "float32"), ((2,), "int32")], ["float32", "int32"]),
        ("right_shift", [((2,), "float32"), ((2,), "float32")], ["integer"]),
        ("logical_and", [((2,), "int8"), ((2,), "int8")], ["bool"]),
        ("exp", [((2,), "int8")], ["float"]),
        ("less", [((2,), "bool"), ((2,), "bool")], ["bool", "number"]),
        ("argmax", [((2,), "bool")], ["bool", "numbers"]),
    ],
)
def test_operands_that_do_not_fit_are_type_errors(
    name: str, types: list[tuple[tuple[int, ...], str]], words: list[str]
) -> None:
    params = [relay.var(f"x{k}", shape, dtype) for k, (shape, dtype) in enumerate(types)]
    with pytest.raises(TypeInferenceError) as caught:
        relay.module(relay.call(name, *params))
    assert all(word in str(caught.value) for word in [name, *words])


def shape_after(name: str, *shapes: tuple[Any, ...]) -> str:
    params = [
        relay.var(f"x{k}", tuple(relay.AnyDim() if d == "?" else d for d in s))
        for k, s in enumerate(shapes)
    ]
    return str(relay.module(relay.call(name, *params))["main"].body.checked_type)


def test_unknown_dimensions_give_way() -> None:
    assert shape_after("add", ("?", 4), (1, 4)) == "Tensor[(?, 4), float32]"
    assert shape_after("add", ("?", 4), (3, 1)) == "Tensor[(3, 4), float32]"
    assert shape_after("add", ("?", 4), ("?", 1)) == "Tensor[(?, 4), float32]"
    assert shape_after("multiply", (2, "?"), (2, 5)) == "Tensor[(2, 5), float32]"
