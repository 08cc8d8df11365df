"""Arrays come back from the fewest bits that hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from compiler.errors import ArtifactError
from compiler.runtime.packed import form_of, member_bytes, pack, unpack

DTYPES = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "float16", "float32", "float64"),
]


@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 63))
def test_arrays_come_back(data: st.DataObject, dtype: str, spare: int) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, min_side=0))
    array = np.asarray(data.draw(arrays.arrays(dtype, shape)))
    if array.dtype.kind in "iu":
        array = array >> min(spare, 8 * array.itemsize - 1)
    member = pack({"k0": array, "k1": array})
    assert len(member) == member_bytes([array, array])
    found = unpack(member, "tensors.bin")
    for one in found.values():
        assert one.dtype == array.dtype
        assert one.shape == array.shape
        assert one.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
@pytest.mark.parametrize("ends", [(0, 0), (1, 1), (30_000, 31_000), (0, 65_536), (65_536, 0)])
def test_a_table_takes_the_entries_between_its_ends_and_an_equal_one_none(
    dtype: str, ends: tuple[int, int]
) -> None:
    entries = np.random.default_rng(0).integers(-100, 100, 65_536 - sum(ends))
    table = np.pad(np.append(entries, 7), ends, mode="edge").astype(dtype)
    member = pack({"k0": table, "k1": table.copy(), "k2": table + np.ones((), dtype)})
    assert len(member) == member_bytes([table, table, table + np.ones((), dtype)])
    assert len(member) <= 2 * entries.size + 200
    found = unpack(member, "tensors.bin")
    assert found["k0"].tobytes() == found["k1"].tobytes() == table.tobytes()
    assert (found["k2"] == table + 1).all()


@given(st.integers(1, 7), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_rows_that_are_negated_take_the_bits_of_others(bits: int, axis: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (6, 5, 7)).astype(np.int8)
    np.moveaxis(levels, axis, 0)[0, 0, 0] = -(1 << (bits - 1))
    rows = [6, 5, 7][axis]
    signs = np.where(np.arange(rows) % 2, 1, -1).astype(np.int8)
    weights = levels * np.moveaxis(signs[:, None, None], 0, axis)
    bytes_of_numbers = -(-weights.size * bits // 8)
    assert form_of(weights).nbytes(weights.size) <= bytes_of_numbers + -(-rows // 8)
    assert np.array_equal(unpack(pack({"k0": weights}), "tensors.bin")["k0"], weights)


def test_whole_bytes_and_large_arrays_come_back() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-4, 4, (600, 1000)).astype(np.int8)
    assert form_of(weights).bits == 3
    assert np.array_equal(unpack(pack({"k0": weights}), "tensors.bin")["k0"], weights)


def test_numbers_far_from_zero_and_multiples_take_the_bits_of_their_steps() -> None:
    multipliers = np.asarray([1 << 30, (1 << 30) + 3 * 128, (1 << 30) + 6 * 128], np.int32)
    form = form_of(multipliers)
    assert (form.bits, form.low, form.shift) == (3, 1 << 30, 7)
    whole = np.asarray([-(1 << 63), (1 << 63) - 1], np.int64)
    assert form_of(whole).bits == 64
    assert np.array_equal(unpack(pack({"k0": whole}), "tensors.bin")["k0"], whole)


@pytest.mark.parametrize(
    "data",
    [
        b"i1\x08\x00\xff\x01\xff\xff\xff\xff\x00",
        b"i1\x01\x00\xff\x04" + b"\xff" * 17,
        b"i1\x08\x01\xff\x00\x00\x00",
        b"f4\x01\x00\xff\x00\x00",
        b"O8\x08\x00\xff\x00",
        b"i1\x08\x00\x07\x01\x01\x00\x00\x00\x00\x00",
        b"i1\x00\x00\xff\x01\x01\x00\x00\x00\x00",
        b"i1\x08\x00\xff\x01\x01\x00\x00\x00",
        b"i1",
        b"xxxxxxxxxx",
        b",9\x08\x00\xff\x00\x00\x00",
    ],
)
def test_what_no_writer_wrote_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"tensors\.bin"):
        unpack(data, "tensors.bin")
