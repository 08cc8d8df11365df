from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError

OPERANDS = [0, 1, -1, 2, -2, 5, -5, 10, -10, 127, -127, 1000, -1000, 100000, -100000]
# Multiplier, shift, UPWARD products.
CASES = [
    (1288490240, -1, "0 0 0 1 -1 2 -2 3 -3 38 -38 300 -300 30000 -30000"),
    (1431655808, -1, "0 0 0 1 -1 2 -2 3 -3 42 -42 333 -333 33333 -33333"),
    (1610612736, 0, "0 1 -1 2 -1 4 -4 8 -7 95 -95 750 -750 75000 -75000"),
    (1825361152, 1, "0 2 -2 3 -3 9 -9 17 -17 216 -216 1700 -1700 170000 -170000"),
    (1690499072, -6, "0 0 0 0 0 0 0 0 0 2 -2 12 -12 1230 -1230"),
    (2147483520, 0, "0 1 -1 2 -2 5 -5 10 -10 127 -127 1000 -1000 100000 -100000"),
    (1879048192, 2, "0 4 -3 7 -7 18 -17 35 -35 445 -444 3500 -3500 350000 -350000"),
]
POWER_OF_TWO = 1 << 30


def multiply(data: NDArray[Any], multiplier: int, shift: int) -> NDArray[Any]:
    x = relay.var("x", data.shape, str(data.dtype))
    call = relay.op.fixed_point_multiply(x, multiplier=multiplier, shift=shift)
    return compiler.evaluate(relay.module(relay.Function((x,), call)), [data])[0]


def multiply_per_axis(
    data: NDArray[Any], multipliers: list[int], shifts: list[int], axis: int
) -> NDArray[Any]:
    x = relay.var("x", data.shape, str(data.dtype))
    call = relay.op.fixed_point_multiply_per_axis(
        x, relay.const(multipliers, "int32"), relay.const(shifts, "int32"), axis=axis
    )
    return compiler.evaluate(relay.module(relay.Function((x,), call)), [data])[0]


def wrap32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def exact(value: int, multiplier: int, shift: int) -> int:
    """Section 7.3 in Python integers."""
    left, right = max(shift, 0), max(-shift, 0)
    if multiplier == POWER_OF_TWO:
        if shift > 1:
            return wrap32(value << (shift - 1))
        k = 1 - shift
        return value if k == 0 else (value + (1 << (k - 1))) >> k
    return wrap32(((value << left) * multiplier + (1 << (30 + right))) >> (31 + right))


@pytest.mark.parametrize(("multiplier", "shift", "products"), CASES)
def test_fixed_point_products_are_the_specified_ones(
    multiplier: int, shift: int, products: str
) -> None:
    got = multiply(np.array(OPERANDS, np.int32), multiplier, shift)
    assert got.tolist() == [int(p) for p in products.split()]
    assert got.dtype == np.int32


multipliers = st.one_of(st.integers(1 << 30, (1 << 31) - 1), st.just(POWER_OF_TWO), st.just(0))


@st.composite
def products(draw: st.DrawFn) -> tuple[list[int], int, int]:
    multiplier, shift = draw(multipliers), draw(st.integers(-40, 12))
    # The contract: |x * 2^shift| < 2^32; a rounding half is added in 32 bits for powers of two.
    limit = 2**30 - 1 if multiplier == POWER_OF_TWO else 2**31 - 1
    limit >>= max(shift, 0)
    return draw(st.lists(st.integers(-limit, limit), min_size=1, max_size=8)), multiplier, shift


@settings(max_examples=300, deadline=None)
@given(products())
def test_products_equal_those_of_python_integers(problem: tuple[list[int], int, int]) -> None:
    values, multiplier, shift = problem
    got = multiply(np.array(values, np.int32), multiplier, shift)
    assert got.tolist() == [exact(v, multiplier, shift) for v in values]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(multipliers, st.integers(-40, 8)), min_size=1, max_size=5),
    st.sampled_from([0, 1, -1]),
    st.integers(0, 2**32 - 1),
)
def test_the_per_axis_form_is_the_plain_one_channel_by_channel(
    factors: list[tuple[int, int]], axis: int, seed: int
) -> None:
    shape = [2, 3]
    shape[axis] = len(factors)
    data = np.random.default_rng(seed).integers(-(2**22), 2**22, shape, dtype=np.int32)
    got = multiply_per_axis(data, [m for m, _ in factors], [s for _, s in factors], axis)
    want = np.empty_like(data)
    for index in np.ndindex(*shape):
        multiplier, shift = factors[index[axis]]
        want[index] = exact(int(data[index]), multiplier, shift)
    np.testing.assert_array_equal(got, want)


def test_halves_go_toward_plus_infinity() -> None:
    # Factor 0.5, as power of two and as a general multiplier of 0.50000000046.
    assert multiply(np.array([-1001, 1001, -1, 1], np.int32), POWER_OF_TWO, 0).tolist() == [
        -500,
        501,
        0,
        1,
    ]


def test_a_scalar_operand_stays_a_scalar() -> None:
    assert multiply(np.array(10, np.int32), 1288490240, -1).tolist() == 3
    assert multiply(np.array(10, np.int32), POWER_OF_TWO, -1).tolist() == 3


def test_floats_and_wrong_vector_lengths_are_type_errors() -> None:
    x = relay.var("x", (2, 3))
    with pytest.raises(TypeInferenceError, match="integer"):
        relay.module(relay.op.fixed_point_multiply(x, multiplier=POWER_OF_TWO, shift=0))
    y, two = relay.var("y", (2, 3), "int32"), relay.const([1, 1], "int32")
    with pytest.raises(TypeInferenceError, match="3"):
        relay.module(relay.op.fixed_point_multiply_per_axis(y, two, two, axis=1))
