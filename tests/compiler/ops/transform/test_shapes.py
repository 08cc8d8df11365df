"""reshape, slices and their kin: special values, negative positions, unknown dimensions."""

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


def run(name: str, *arrays: NDArray[Any], **attrs: Any) -> list[NDArray[Any]]:
    params = [relay.var(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(arrays)]
    mod = relay.module(relay.Function(tuple(params), relay.call(name, *params, **attrs)))
    return compiler.evaluate(mod, list(arrays))


def shape_after(shape: tuple[Any, ...], name: str, **attrs: Any) -> str:
    x = relay.var("x", tuple(relay.AnyDim() if d == "?" else d for d in shape))
    text = str(relay.module(relay.call(name, x, **attrs))["main"].body.checked_type)
    return text.removeprefix("Tensor[").removesuffix(", float32]")


@pytest.mark.parametrize(
    ("shape", "newshape", "want"),
    [
        ((2, 3, 4), (4, 0, 2), "(4, 3, 2)"),
        ((2, 3, 4), (6, -1), "(6, 4)"),
        ((2, 3, 4), (-2,), "(2, 3, 4)"),
        ((2, 3, 4), (2, -2), "(2, 3, 4)"),
        ((2, 3, 4), (-3, 4), "(6, 4)"),
        ((2, 3, 4), (-4, 1, 2, -2), "(1, 2, 3, 4)"),
        ((2, 3, 4), (2, -4, -1, 3, -2), "(2, 1, 3, 4)"),
        ((), (1, -1), "(1, 1)"),
        (("?", 8, 8), (-1, 64), "(?, 64)"),
        (("?", 8, 8), (0, -1), "(?, 64)"),
        (("?", 8, 8), (-1,), "(?)"),
    ],
)
def test_reshape_reads_special_values(
    shape: tuple[Any, ...], newshape: tuple[int, ...], want: str
) -> None:
    assert shape_after(shape, "reshape", newshape=newshape) == want


@pytest.mark.parametrize(
    "newshape", [(4, -1), (7,), (-1, -1), (2, 3, 0), (-4, 2), (-4, 2, 2), (-5,), (-3, -3)]
)
def test_reshape_refuses_what_does_not_fit_and_shows_both_shapes(newshape: tuple[int, ...]) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        shape_after((2, 3), "reshape", newshape=newshape)
    assert "(2, 3)" in str(caught.value)
    assert f"({', '.join(map(str, newshape))})" in str(caught.value)


def test_zero_is_a_size_when_allowed() -> None:
    assert shape_after((0, 3), "reshape", newshape=(3, 0), allowzero=True) == "(3, 0)"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.integers(-3, 3).filter(bool),
)
def test_strided_slice_is_python_slicing(size: int, begin: int, end: int, stride: int) -> None:
    data = np.arange(2 * size, dtype=np.int32).reshape(2, size)
    got = run("strided_slice", data, begin=(begin,), end=(end,), strides=(stride,), axes=(-1,))[0]
    stop = None if stride < 0 and end < -size else end
    np.testing.assert_array_equal(got, data[:, begin:stop:stride])


def test_slice_mode_size_reads_lengths() -> None:
    data = np.arange(12, dtype=np.int32).reshape(3, 4)
    got = run("strided_slice", data, begin=(1, 1), end=(-1, 2), slice_mode="size")[0]
    np.testing.assert_array_equal(got, data[1:, 1:3])


def test_split_cuts_or_divides() -> None:
    data = np.arange(12, dtype=np.int32).reshape(2, 6)
    assert [p.shape for p in run("split", data, indices_or_sections=3, axis=1)] == [(2, 2)] * 3
    pieces = run("split", data, indices_or_sections=(1, 4), axis=-1)
    assert [p.shape for p in pieces] == [(2, 1), (2, 3), (2, 2)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), data)
    with pytest.raises(TypeInferenceError, match="4 equal"):
        run("split", data, indices_or_sections=4, axis=1)


def test_squeeze_and_expand_dims_undo_each_other() -> None:
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    wide = run("expand_dims", data, axis=1, num_newaxis=2)[0]
    assert wide.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(run("squeeze", wide, axis=(1, 2))[0], data)
    np.testing.assert_array_equal(run("squeeze", wide)[0], data)
    with pytest.raises(TypeInferenceError, match="size 3"):
        run("squeeze", wide, axis=3)


def test_concatenate_names_the_field_that_does_not_fit() -> None:
    x, y = relay.var("x", (1, 2)), relay.var("y", (1, 3))
    both = relay.op.concatenate([x, y], axis=1)
    assert str(relay.module(both)["main"].body.checked_type) == "Tensor[(1, 5), float32]"
    with pytest.raises(TypeInferenceError, match="field 1"):
        relay.module(relay.op.concatenate([x, y], axis=0))


def test_take_clips_wraps_and_keeps_the_shape_of_indices() -> None:
    data = np.arange(12, dtype=np.int8).reshape(3, 4)
    indices = np.array([[0, 5], [-1, 2]], np.int64)
    got = run("take", data, indices, axis=0)[0]
    np.testing.assert_array_equal(got, data[[[0, 2], [0, 2]]])
    got = run("take", data, indices, axis=1, mode="wrap")[0]
    np.testing.assert_array_equal(got, data[:, [[0, 1], [3, 2]]])
    batched = run("take", data, np.array([1, 0, 3], np.int32), axis=1, batch_dims=1)[0]
    np.testing.assert_array_equal(batched, [1, 4, 11])


def test_gather_nd_takes_index_tuples_along_axis_0() -> None:
    data = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    indices = np.array([[0, 1], [2, 0]], np.int64)
    np.testing.assert_array_equal(run("gather_nd", data, indices)[0], data[[0, 1], [2, 0]])
    batched = run("gather_nd", data, np.array([[2, 0]], np.int64), batch_dims=1)[0]
    np.testing.assert_array_equal(batched, data[[0, 1], [2, 0]])


def test_sorting_keeps_equal_elements_in_order() -> None:
    data = np.array([3.0, 1.0, 3.0, 2.0], np.float32)
    order = {"k": 0, "ret_type": "indices"}
    assert run("topk", data, is_ascend=True, **order)[0].tolist() == [1, 3, 0, 2]
    assert run("topk", data, **order)[0].tolist() == [0, 2, 3, 1]
    values, indices = run("topk", data, k=2)
    assert (values.tolist(), indices.tolist()) == ([3, 3], [0, 2])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    data = np.arange(2 * 8 * 2 * 3, dtype=np.int8).reshape(2, 8, 2, 3)
    wide = run("nn.depth_to_space", data, block_size=2, mode=mode)[0]
    assert wide.shape == (2, 2, 4, 6)
    np.testing.assert_array_equal(run("nn.space_to_depth", wide, block_size=2, mode=mode)[0], data)


def test_transposes_and_layouts_agree() -> None:
    data = np.arange(24, dtype=np.int8).reshape(1, 2, 3, 4)
    want = data.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(run("transpose", data, axes=(0, 2, 3, -3))[0], want)
    got = run("layout_transform", data, src_layout="NCHW", dst_layout="NHWC")[0]
    np.testing.assert_array_equal(got, want)
    with pytest.raises(TypeInferenceError, match="2 of 4"):
        run("transpose", data, axes=(0, 1))


def test_pad_crops_where_it_is_negative() -> None:
    data, value = np.arange(6, dtype=np.int8).reshape(2, 3), np.array(9, np.int8)
    got = run("nn.pad", data, value, pad_width=((1, 0), (-1, 1)))[0]
    assert got.tolist() == [[9, 9, 9], [1, 2, 9], [4, 5, 9]]
    got = run("nn.pad", data, value, pad_width=((0, 0), (2, 0)), pad_mode="reflect")[0]
    assert got.tolist() == [[2, 1, 0, 1, 2], [5, 4, 3, 4, 5]]


def test_one_hot_writes_nothing_for_indices_outside() -> None:
    on, off = np.array(5, np.int8), np.array(0, np.int8)
    got = run("one_hot", np.array([1, 7], np.int64), on, off, depth=3)[0]
    assert got.tolist() == [[0, 5, 0], [0, 0, 0]]
