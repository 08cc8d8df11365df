"""nn.dense, nn.matmul and nn.batch_matmul against the sum of products."""

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

Array = NDArray[Any]


def run(name: str, a: Array, b: Array, **attrs: Any) -> Array:
    x, y = relay.var("x", a.shape, str(a.dtype)), relay.var("y", b.shape, str(b.dtype))
    mod = relay.module(relay.Function((x, y), relay.call(name, x, y, **attrs)))
    return compiler.evaluate(mod, [a, b])[0]


def exact(a: Array, b: Array) -> Array:
    """a @ b in Python integers, wrapped to 32 bits."""
    product = np.matmul(a.astype(object), b.astype(object))
    return np.vectorize(lambda v: (v + 2**31) % 2**32 - 2**31, otypes=[np.int64])(product)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from([("int8", 127), ("int32", 1 << 22), ("int32", 2**31 - 1)]),
    st.integers(0, 2**32 - 1),
)
def test_integer_products_are_exact_whatever_their_size(
    m: int, k: int, n: int, kind: tuple[str, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dtype, limit = kind
    a = rng.integers(-limit, limit, (m, k), dtype=dtype, endpoint=True)
    b = rng.integers(-limit, limit, (n, k), dtype=dtype, endpoint=True)
    want = exact(a, b.T)
    np.testing.assert_array_equal(run("nn.dense", a, b, out_dtype="int32"), want)
    np.testing.assert_array_equal(run("nn.matmul", a, b, transpose_b=True, out_dtype="int32"), want)
    np.testing.assert_array_equal(
        run("nn.batch_matmul", a[None], b[None], out_dtype="int32")[0], want
    )


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1)])
def test_batch_matmul_transposes_and_repeats_a_single_batch(
    transpose_a: bool, transpose_b: bool, batches: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((batches[0], 4, 5)).astype(np.float32)
    y = rng.standard_normal((batches[1], 5, 6)).astype(np.float32)
    got = run(
        "nn.batch_matmul",
        np.ascontiguousarray(x.transpose(0, 2, 1)) if transpose_a else x,
        np.ascontiguousarray(y.transpose(0, 2, 1)) if transpose_b else y,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    # Five float32 products each.
    np.testing.assert_allclose(got, np.matmul(x, y), rtol=1e-5, atol=1e-6)


def test_dense_takes_any_number_of_leading_axes() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-9, 9, (2, 3, 5), dtype=np.int8)
    w = rng.integers(-9, 9, (4, 5), dtype=np.int8)
    got = run("nn.dense", x, w, out_dtype="int32")
    np.testing.assert_array_equal(got, exact(x, w.T))


@pytest.mark.parametrize(
    ("name", "a", "b", "words"),
    [
        ("nn.dense", (4, 8), (10, 7), ["8", "7"]),
        ("nn.dense", (4, 8), (10, 8, 1), ["rank 2"]),
        ("nn.matmul", (4, 8), (7, 3), ["8", "7"]),
        ("nn.batch_matmul", (2, 4, 8), (3, 5, 8), ["2 batches", "3"]),
        ("nn.batch_matmul", (4, 8), (5, 8), ["rank 3"]),
    ],
)
def test_shapes_that_do_not_fit_are_type_errors(
    name: str, a: tuple[int, ...], b: tuple[int, ...], words: list[str]
) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        relay.module(relay.call(name, relay.var("x", a), relay.var("y", b)))
    assert all(word in str(caught.value) for word in [name, *words])
