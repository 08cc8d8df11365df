from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.errors import TypeInferenceError
from compiler.ir.inference.infer_type import infer_module


def defined(row: list[int], table: list[int], out_bits: int) -> list[int]:
    """The definition in Python integers."""
    top = max(row)
    e = [max(table[min(top - value, len(table) - 1)], 0) for value in row]
    total = max(sum(e), 1)
    return [(x * 2 ** (out_bits + 1) + total) // (2 * total) for x in e]


@given(
    st.sampled_from(("int8", "uint8", "int16")),
    st.integers(1, 40),
    st.integers(1, 20),
    st.sampled_from((1, 7, 256)),
    st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_the_operator_is_its_definition(
    dtype: str, n: int, out_bits: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, (3, n), dtype, endpoint=True)
    data[1] = info.max
    data[2, 0] = info.min
    table = np.sort(rng.integers(-3, 1 << int(rng.integers(2, 30)), size))[::-1].astype("int32")
    x = relay.var("x", (n, 3), dtype)
    call = relay.op.nn.integer_softmax(x, relay.const(table), axis=0, out_bits=out_bits)
    got = evaluate(relay.module(call), [np.ascontiguousarray(data.T)])[0]
    assert got.dtype == np.int32
    for row, found in zip(data.tolist(), got.T.tolist()):
        assert found == defined(row, table.tolist(), out_bits)


@pytest.mark.parametrize("scale", [0.02, 0.1, 0.5])
def test_with_a_table_of_exponentials_it_is_softmax(scale: float) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(-127, 128, (50, 49)).astype("int8")
    table = np.floor(np.exp(-np.arange(256) * scale) * 2**22 + 0.5).astype("int32")
    x = relay.var("x", data.shape, "int8")
    got = evaluate(relay.module(relay.op.nn.integer_softmax(x, relay.const(table))), [data])[0]
    e = np.exp((data - data.max(1, keepdims=True).astype(float)) * scale)
    wanted = e / e.sum(1, keepdims=True) * 2**15
    # Half a step of rounding, and what 49 entries rounded at 2^-22 do to the sum.
    assert np.abs(got - wanted).max() <= 0.5 + 0.25


@pytest.mark.parametrize(
    ("data", "table", "attrs"),
    [
        ("int32", "int32", {}),
        ("int8", "int16", {}),
        ("int8", "int32", {"axis": 3}),
        ("int8", "int32", {"out_bits": 0}),
        ("int8", "int32", {"out_bits": 21}),
    ],
)
def test_other_types_are_refused(data: str, table: str, attrs: dict[str, int]) -> None:
    x = relay.var("x", (2, 3), data)
    call = relay.op.nn.integer_softmax(x, relay.const(np.ones(4, table)), **attrs)
    with pytest.raises(TypeInferenceError):
        infer_module(relay.module(call))
