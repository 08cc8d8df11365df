from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.errors import TypeInferenceError
from compiler.ir.inference.infer_type import infer_module
from compiler.ops.nn.integer_standardize import output_bound
from compiler.ops.tensor.isqrt import integer_sqrt


def defined(row: list[int], epsilon: int, root_bits: int, out_bits: int) -> list[int]:
    """The definition in Python integers."""
    n, total = len(row), sum(row)
    deviation = n * sum(x * x for x in row) - total**2 + epsilon
    root = max(math.isqrt(deviation * 4**root_bits), 1)
    turn = 2 ** (out_bits + root_bits + 1)
    return [((n * x - total) * turn + root) // (2 * root) for x in row]


@st.composite
def rows(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    dtype = draw(st.sampled_from(("int8", "int16", "int32")))
    reach = min(np.iinfo(dtype).max, 1 << 15)
    n = draw(st.integers(1, 64))
    value = st.one_of(st.integers(-reach, reach - 1), st.integers(-2, 2), st.just(-reach))
    row = st.lists(value, min_size=n, max_size=n)
    return dtype, draw(st.lists(row, min_size=1, max_size=3))


@given(rows(), st.integers(0, 1 << 30), st.integers(0, 4), st.integers(0, 14))
@settings(max_examples=150, deadline=None)
def test_the_operator_is_its_definition(
    drawn: tuple[str, list[list[int]]], epsilon: int, root_bits: int, out_bits: int
) -> None:
    dtype, data = drawn
    array = np.array(data, dtype)
    x = relay.var("x", array.shape, dtype)
    call = relay.op.nn.integer_standardize(
        x, epsilon=epsilon, root_bits=root_bits, out_bits=out_bits
    )
    got = evaluate(relay.module(call), [array])[0]
    assert got.dtype == np.int32
    for row, found in zip(data, got.tolist()):
        assert found == defined(row, epsilon, root_bits, out_bits)
        assert max(map(abs, found)) <= output_bound(len(row), out_bits)


@given(st.integers(2, 2000), st.integers(0, 14), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_no_row_leaves_the_output_bound(n: int, out_bits: int, root_bits: int) -> None:
    lone = [0] * (n - 1)
    for row in ([*lone, 1], [*lone, -3], [1, *lone], [5, -5, *[0] * (n - 2)]):
        found = defined(row, 0, root_bits, out_bits)
        assert max(map(abs, found)) <= output_bound(n, out_bits)


@given(st.one_of(st.integers(0, (1 << 62) - 1), st.integers(1, 1 << 31).map(lambda m: m * m - 1)))
@settings(max_examples=300, deadline=None)
def test_roots_are_exact(value: int) -> None:
    value = min(value, (1 << 62) - 1)
    assert integer_sqrt(np.array([value], np.int64))[0] == math.isqrt(value)


def test_integer_standardize_normalises() -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(-9000, 9000, (20, 64)).astype("int16")
    x = relay.var("x", data.shape, "int16")
    call = relay.op.nn.integer_standardize(x, epsilon=1000, root_bits=4, out_bits=12)
    got = evaluate(relay.module(call), [data])[0] / 2**12
    wide = data.astype(float)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(
        wide.var(1, keepdims=True) + 1000 / 64**2
    )
    # Half a step of rounding; the root has more than 20 bits here.
    assert np.abs(got - wanted).max() < 0.51 / 2**12


@pytest.mark.parametrize(
    ("dtype", "attrs"),
    [
        ("uint8", {}),
        ("int64", {}),
        ("int8", {"axis": 2}),
        ("int8", {"epsilon": -1}),
        ("int8", {"root_bits": 21}),
        ("int8", {"out_bits": -1}),
    ],
)
def test_other_types_and_attributes_are_refused(dtype: str, attrs: dict[str, int]) -> None:
    call = relay.op.nn.integer_standardize(relay.var("x", (2, 3), dtype), **attrs)
    with pytest.raises(TypeInferenceError):
        infer_module(relay.module(call))
