from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.errors import TypeInferenceError
from compiler.ir.inference.infer_type import infer_module


@given(
    st.sampled_from(("int8", "uint8", "int16", "uint16")),
    st.sampled_from(("int8", "int32", "float32", "int64")),
    st.integers(1, 300),
    st.integers(0, 1 << 20),
)
@settings(max_examples=50, deadline=None)
def test_every_integer_finds_its_entry(dtype: str, entries: str, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, (2, 50), dtype, endpoint=True)
    data[0, :2] = info.min, info.max
    table = rng.integers(-100, 100, size).astype(entries)
    x = relay.var("x", data.shape, dtype)
    got = evaluate(relay.module(relay.op.lookup(x, relay.const(table))), [data])[0]
    assert got.dtype == table.dtype
    for value, found in zip(data.ravel(), got.ravel()):
        assert found == table[min(int(value) - info.min, size - 1)]


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_wide_data_are_refused(dtype: str) -> None:
    x, table = relay.var("x", (2,), dtype), relay.const(np.zeros(256, "int8"))
    with pytest.raises(TypeInferenceError, match="legal dtypes: int8, uint8, int16, uint16"):
        infer_module(relay.module(relay.op.lookup(x, table)))


@pytest.mark.parametrize("shape", [(0,), (2, 2), ()])
def test_a_table_is_a_row_of_entries(shape: tuple[int, ...]) -> None:
    x, table = relay.var("x", (2,), "int8"), relay.const(np.zeros(shape, "int8"))
    with pytest.raises(TypeInferenceError):
        infer_module(relay.module(relay.op.lookup(x, table)))
